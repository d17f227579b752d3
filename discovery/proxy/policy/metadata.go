package policy

import (
	"fmt"
	"math"
	"strings"
)

// Metadata names what a part of a policy comes from. A default has the kind "default" and no group.
type Metadata struct {
	Group, Kind, Namespace, Name, Section string
	Port                                  uint16 // 0 if none
}

// defaultKind is that of what no resource stands for.
const defaultKind = "default"

// String returns group/kind/namespace/name:port, without what is empty.
func (m Metadata) String() string {
	var parts []string
	for _, part := range []string{m.Group, m.Kind, m.Namespace, m.Name, m.Section} {
		if part != "" {
			parts = append(parts, part)
		}
	}

	text := strings.Join(parts, "/")
	if m.Port != 0 {
		text = fmt.Sprintf("%s:%d", text, m.Port)
	}
	return text
}

// metadataOf reads the metadata of a part, which it must have. Only an outbound proxy looks at what is in a resource.
func (d direction) metadataOf(owner part) Metadata {
	metadata, present := owner.need("metadata")
	if !present {
		return Metadata{}
	}

	switch metadata.which("kind") {
	case defaultKind:
		return Metadata{Kind: defaultKind, Name: metadata.text(defaultKind)}
	case "":
		metadata.invalid("", "neither a default nor a resource")
		return Metadata{}
	}

	resource := metadata.at("resource")
	for _, name := range []string{"group", "kind", "name", "namespace"} {
		if d == sends && resource.text(name) == "" {
			resource.invalid(name, "empty")
		}
	}
	return resourceOf(resource)
}

func resourceOf(resource part) Metadata {
	port := resource.number("port")
	if port > math.MaxUint16 {
		resource.odd("port", "%d, and the proxy leaves it out", port)
		port = 0
	}

	return Metadata{
		Group:     resource.text("group"),
		Kind:      resource.text("kind"),
		Namespace: resource.text("namespace"),
		Name:      resource.text("name"),
		Section:   resource.text("section"),
		Port:      uint16(port),
	}
}

// serverGroup is the group of labels that have none.
const serverGroup = "policy.linkerd.io"

// labelled reads the labels of a part, which stand for its metadata. Labels without a kind are those of old control
// planes, whose names may be kind:name.
func labelled(owner part, kind string) Metadata {
	labels := owner.labels("labels")
	name, is := labels["name"]
	if !is {
		owner.invalid("labels", "without a name")
		return Metadata{}
	}

	group, hasGroup := labels["group"]
	if !hasGroup {
		group = serverGroup
	}
	if own, is := labels["kind"]; is {
		return Metadata{Group: group, Kind: own, Name: name}
	}

	own, rest, found := strings.Cut(name, ":")
	if !found {
		return Metadata{Group: group, Kind: kind, Name: name}
	}
	if own == defaultKind {
		group = ""
	}
	return Metadata{Group: group, Kind: own, Name: rest}
}
