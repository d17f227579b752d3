package linkerd

import (
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/serving"
)

// typeProfile is the type of a message of GetProfile.
const typeProfile serving.MessageType = "profile"

// Frames that are the same for every client.
var (
	heartbeatFrame = constant(serving.Beat, &pb.Update{Update: &pb.Update_Add{Add: &pb.WeightedAddrSet{}}})
	emptyFrame     = noEndpoints(true)
	absentFrame    = noEndpoints(false)

	// undeclaredFrame is for a port that its Service does not declare: the client falls back to the policy.
	undeclaredFrame = constant(typeProfile, &pb.DestinationProfile{})
)

func noEndpoints(exists bool) *serving.Frame {
	none := &pb.NoEndpoints{Exists: exists}
	return constant(discovery.NoEntries, &pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: none}})
}

func constant(messageType serving.MessageType, m proto.Message) *serving.Frame {
	b, err := marshal(m)
	if err != nil {
		panic("BUG: a constant that cannot be encoded: " + err.Error())
	}
	return serving.NewFrame(messageType, b, 0, 0)
}

// marshal encodes a message, and fails if a text in it is no UTF-8.
func marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}
