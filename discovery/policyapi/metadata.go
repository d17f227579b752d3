package policyapi

import (
	metapb "github.com/linkerd/linkerd2-proxy-api/go/meta"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// coreGroup is what proxies call the group of Services.
const coreGroup = "core"

func newMetadata(of rules.Origin, port uint16) *metapb.Metadata {
	if of.Default != "" {
		return &metapb.Metadata{Kind: &metapb.Metadata_Default{Default: of.Default}}
	}
	return newResource(&metapb.Resource{
		Group: groupOf(of.Kind), Kind: of.Kind.String(), Name: of.Name, Namespace: of.Namespace, Port: uint32(port),
	})
}

// newInboundMetadata has no namespace: it is that of the workload.
func newInboundMetadata(of rules.Origin, kind string) *metapb.Metadata {
	if of.Default != "" {
		return newMetadata(of, 0)
	}
	return newResource(&metapb.Resource{Group: groupOf(of.Kind), Kind: kind, Name: of.Name})
}

func newResource(r *metapb.Resource) *metapb.Metadata {
	return &metapb.Metadata{Kind: &metapb.Metadata_Resource{Resource: r}}
}

func groupOf(kind rules.Kind) string {
	if group := kind.Group(); group != "" {
		return group
	}
	return coreGroup
}
