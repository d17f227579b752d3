package policy_test

import (
	"errors"
	"fmt"
	"net/http"

	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// A message that a proxy takes, and one that it refuses.
func ExampleDecodeOutbound() {
	message := &outboundpb.OutboundPolicy{}
	if err := prototext.Unmarshal([]byte(httpPolicy), message); err != nil {
		panic(err)
	}
	client, err := policy.DecodeOutbound(message)
	if err != nil {
		panic(err)
	}

	request := policy.Request{Authority: "web:80", Path: "/?q=v", Header: http.Header{"X-A": {"b"}}}
	route, rule := client.Route(request)
	fmt.Println(route.Metadata, rule.Outcomes())
	for _, backend := range rule.Backends {
		fmt.Println(backend.Weight, backend.Metadata)
	}

	message.Metadata = nil
	_, err = policy.DecodeOutbound(message)
	fmt.Println(errors.Is(err, policy.ErrInvalid), err)

	// Output:
	// core/Service/shop/web:80 [1 redirect 302]
	// 3 core/Service/shop/web:80
	// 1 core/Service/shop/web:80
	// true metadata: absent: the proxy refuses the policy
}
