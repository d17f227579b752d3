package rules

// An EgressNetwork is a part of the world outside of the cluster.
type EgressNetwork struct {
	Meta
	Networks []Network // nil: all but those of the cluster; empty: none
	Deny     bool      // traffic that no route allows
	Settings Settings
}
