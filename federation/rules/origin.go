package rules

// An Origin is where a part of an answer comes from: an object, or a default of a name. Proxies have it in metrics.
type Origin struct {
	Reference
	Default string // otherwise the Reference is that of an object
}

func defaultOrigin(name string) Origin { return Origin{Default: name} }
