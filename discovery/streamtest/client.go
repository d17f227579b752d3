package streamtest

import (
	"context"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// GetOnce asks once, and returns how the first answer ended.
func GetOnce(ctx context.Context, conn *grpc.ClientConn, request *pb.GetDestination) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewDestinationClient(conn).Get(ctx, request)
	if err == nil {
		err = stream.RecvMsg(&emptypb.Empty{}) // not decoded: answers are large, and are not looked at
	}
	return err
}
