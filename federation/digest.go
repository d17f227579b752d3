package federation

import (
	"fmt"
	"hash/fnv"
	"io"
)

// Digest returns a number that is the same for equal Views, in every process of one version, and hardly
// ever for others.
func (v *View) Digest() uint64 {
	hash := fnv.New64a()
	own := *v
	own.Slices, own.Composition, own.Policy = nil, nil, nil
	fmt.Fprintf(hash, "%+v\n", own)
	if v.Composition != nil {
		fmt.Fprintf(hash, "%+v\n", *v.Composition)
	}
	if v.Policy != nil {
		fmt.Fprintf(hash, "%+v\n", *v.Policy)
	}

	for _, s := range v.Slices {
		fmt.Fprintf(hash, "%q %+v\n", s.Name, s.Ports)
		for _, e := range s.Endpoints {
			e.digest(hash)
		}
	}
	return hash.Sum64()
}

func (e *Endpoint) digest(to io.Writer) {
	own := *e
	own.Workload, own.Detail = nil, nil
	fmt.Fprintf(to, "%q %+q %+v", e.Hostname(), e.Hints(), own)
	if w := e.Workload; w != nil {
		kind, name := w.Owner()
		fmt.Fprintf(to, " %v %q %q %q %q %+v", w.Kind(), w.Namespace(), w.Name, kind, name, w.Template())
	}
	if m := e.Mirror(); m != nil {
		fmt.Fprintf(to, " %+v", *m)
	}
	fmt.Fprintln(to)
}
