package policy

import (
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
)

// A Client is what an outbound proxy makes of a policy. It is immutable.
type Client struct {
	Metadata      Metadata
	Protocol      Protocol
	DetectTimeout time.Duration // of Detect
	Oddities      []Finding     // of the class ErrOdd, in the order of fields

	routes map[Protocol][]Route
}

// DecodeOutbound reads a policy as an outbound proxy does. The error wraps the findings of the worst class; the Client
// is nil unless that is ErrFailsAtOnce. It takes time in proportion to the message.
func DecodeOutbound(message *outbound.OutboundPolicy) (*Client, error) {
	root := rootOf(message)
	client := &Client{Metadata: sends.metadataOf(root), routes: map[Protocol][]Route{}}
	if p, present := root.need("protocol"); present {
		client.readProtocol(p)
	}

	client.Oddities = root.found.of(ErrOdd)
	err := root.found.worst()
	if !usable(err) {
		return nil, err
	}
	return client, err
}

func (c *Client) readProtocol(p part) {
	c.Protocol = Protocol(p.needOne("kind"))
	switch c.Protocol {
	case "":
	case Detect:
		c.readDetect(p.at(string(Detect)))
	default:
		c.readRoutes(p.at(string(c.Protocol)), c.Protocol)
	}
}

// readDetect reads what becomes of each protocol that the proxy may find.
func (c *Client) readDetect(p part) {
	c.DetectTimeout = detectTimeoutOf(p)
	for _, protocol := range []Protocol{HTTP1, HTTP2, Opaque} {
		if found, present := p.need(string(protocol)); present {
			c.readRoutes(found, protocol)
		}
	}
}

func detectTimeoutOf(p part) time.Duration {
	timeout := p.needDuration("timeout")
	if p.has("timeout") && timeout == 0 {
		p.odd("timeout", "zero, and most connections are opaque")
	}
	return timeout
}

func (c *Client) readRoutes(found part, protocol Protocol) {
	routes := sends.routesOf(found, "routes", protocol)
	c.routes[protocol] = routes
	if protocol.isHTTP() {
		checkAccrual(found)
	}

	switch {
	case len(routes) == 0:
		found.odd("routes", "none, and nothing is routed")
	case len(routes) > 1 && protocol == Opaque:
		found.invalid("routes", "%d, and the proxy wants one", len(routes))
	}
}

// Routes returns the routes for what a client sends, in order; nil if the proxy cannot route it.
func (c *Client) Routes(sent Request) []Route {
	switch {
	case c.Protocol != Detect:
		fits := c.Protocol == Opaque || c.Protocol.isHTTP() && sent.isHTTP() || c.Protocol == sent.Protocol
		if !fits {
			return nil
		}
		return c.routes[c.Protocol]

	case !sent.isHTTP():
		return c.routes[Opaque]
	case sent.Protocol == HTTP2 || sent.Protocol == GRPC:
		return c.routes[HTTP2]
	default:
		return c.routes[HTTP1]
	}
}

// Route returns the rule that a request gets, and its route; nil if it gets none. The proxy then answers it with 404,
// or closes the connection.
func (c *Client) Route(request Request) (*Route, *Rule) { return find(c.Routes(request), request) }
