package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/e2e/internal/spawn"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// What Fingerpost is compared with: servers that know nothing and write to every stream what they are handed.
const (
	bare       = "bare"       // the bytes as they are: what grpc-go itself costs
	marshalled = "marshalled" // the same message, encoded for every stream: what sharing saves
)

// frame is a message as it goes out.
type frame struct{ bytes mem.SliceBuffer }

type frameCodec struct{ encoding.CodecV2 }

func (c frameCodec) Marshal(message any) (mem.BufferSlice, error) {
	if f, is := message.(*frame); is {
		return mem.BufferSlice{f.bytes}, nil
	}
	return c.CodecV2.Marshal(message)
}

// repeater sends each of its streams the newest message.
type repeater struct {
	pb.UnimplementedDestinationServer
	newest watch.Value[any]
}

func (r *repeater) Get(_ *pb.GetDestination, stream pb.Destination_GetServer) error {
	for {
		message, superseded := r.newest.Load()
		if message != nil {
			if err := stream.SendMsg(message); err != nil {
				return err
			}
		}
		select {
		case <-superseded:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// serveVariant prints its address, reads messages, each with its length before it, and serves them until
// there are no more.
func serveVariant(ctx context.Context, kind string, messages io.Reader, out io.Writer) error {
	r := &repeater{}
	s := grpc.NewServer(grpc.ForceServerCodecV2(frameCodec{encoding.GetCodecV2("proto")}), grpc.WriteBufferSize(64<<10))
	pb.RegisterDestinationServer(s, r)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer s.Stop()
	go func() { _ = s.Serve(listener) }()
	fmt.Fprintln(out, listener.Addr())
	for {
		var size uint32
		if err := binary.Read(messages, binary.BigEndian, &size); err != nil {
			return nil // the end of the input is the end
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(messages, b); err != nil {
			return err
		}
		if kind == bare {
			r.newest.Store(&frame{b})
			continue
		}
		var update pb.Update
		if err := proto.Unmarshal(b, &update); err != nil {
			return err
		}
		r.newest.Store(&update)
	}
}

// variant is such a server as a process.
type variant struct {
	addr    string
	spawner *spawn.Spawner
	command *exec.Cmd
	input   io.WriteCloser
	once    sync.Once
}

func startVariant(kind string) (*variant, error) {
	spawner, err := spawn.New()
	if err != nil {
		return nil, err
	}
	v := &variant{spawner: spawner, command: exec.Command(os.Args[0], "variant", kind)}
	v.command.Stderr = os.Stderr
	if v.input, err = v.command.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := v.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := spawner.Start(v.command); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("a server to compare with did not start: %w", err)
	}
	v.addr = strings.TrimSpace(line)
	return v, nil
}

func (v *variant) send(message []byte) error {
	if err := binary.Write(v.input, binary.BigEndian, uint32(len(message))); err != nil {
		return err
	}
	_, err := v.input.Write(message)
	return err
}

func (v *variant) stop() {
	v.once.Do(func() {
		_ = v.input.Close()
		_ = v.command.Wait()
		v.spawner.Close()
	})
}
