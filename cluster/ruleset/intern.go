package ruleset

import (
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"weak"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// Most Pods have the same policy as others of their template: labels, ports, probes, annotations. They share one
// Workload, by pointer, so that the streams of their proxies share one message. It is forgotten with the last of them.

// An interner holds the Workloads that are in use. The zero interner has none.
type interner struct {
	mu   sync.Mutex
	used map[string][]weak.Pointer[rules.Workload] // by namespace and labels
}

// intern returns the Workload in use that equals one, which is the same if there is none. Of nil it is nil.
func (i *interner) intern(workload *rules.Workload) *rules.Workload {
	if workload == nil {
		return nil
	}
	text := textOf(workload)

	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range i.used[text] {
		if used := p.Value(); used != nil && reflect.DeepEqual(used, workload) {
			return used
		}
	}

	if i.used == nil {
		i.used = map[string][]weak.Pointer[rules.Workload]{}
	}
	i.used[text] = append(i.used[text], weak.Make(workload))
	runtime.AddCleanup(workload, i.forget, text)
	return workload
}

// forget drops the Workloads of a text that are in use no more.
func (i *interner) forget(text string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.used[text] = slices.DeleteFunc(i.used[text], func(p weak.Pointer[rules.Workload]) bool {
		return p.Value() == nil
	})
	if len(i.used[text]) == 0 {
		delete(i.used, text)
	}
}

// textOf returns what few Workloads have in common that are not equal.
func textOf(w *rules.Workload) string {
	var text strings.Builder
	text.WriteString(w.Namespace)
	for _, key := range slices.Sorted(maps.Keys(w.Labels)) {
		text.WriteString("\x00" + key + "\x00" + w.Labels[key])
	}
	return text.String()
}
