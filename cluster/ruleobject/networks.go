package ruleobject

import (
	"errors"
	"fmt"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// A networkSpec is a network with its exceptions.
type networkSpec struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except"`
}

// networks reads a list of networks. An absent one stays nil, and one without elements stays empty: a new object is
// denied for it. A network that its exceptions cover is left out, and so are exceptions that lie outside. A text that
// is no network, and more than the bounds allow, is an error: without it the object might stand for more.
func (r *reader) networks(all []networkSpec) ([]rules.Network, error) {
	if all == nil {
		return nil, nil
	}
	if len(all) == 0 {
		r.deny(r.note(rules.PartNetwork, "the list of networks is empty"))
	}

	exceptions := 0
	for _, n := range all {
		exceptions += len(n.Except)
	}
	if len(all) > maxNetworks || exceptions > maxExceptions {
		return nil, fmt.Errorf("it has %d networks with %d exceptions; at most %d with %d are allowed",
			len(all), exceptions, maxNetworks, maxExceptions)
	}

	networks := make([]rules.Network, 0, len(all))

	for _, from := range all {
		network, err := r.network(from)
		switch {
		case errors.Is(err, rules.ErrCovers):
			r.deny(r.leaveOut(rules.PartNetwork, "%v", err))
		case err != nil:
			return nil, err
		default:
			networks = append(networks, network)
		}
	}

	return networks, nil
}

// network reads a network without the exceptions that lie outside of it. The error wraps rules.ErrCovers or
// rules.ErrAddress.
func (r *reader) network(from networkSpec) (rules.Network, error) {
	within := make([]string, 0, len(from.Except))
	for _, exception := range from.Except {
		if _, err := rules.ParseNetwork(from.CIDR, []string{exception}); errors.Is(err, rules.ErrOutside) {
			r.deny(r.leaveOut(rules.PartNetwork, "%v", err))
			continue
		}
		within = append(within, exception)
	}
	return rules.ParseNetwork(from.CIDR, within)
}
