package ruleset

import (
	"crypto/sha256"
	"runtime"
	"sync"
	"weak"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// Most Pods have the same policy as others of their template: labels, ports, probes, annotations. They share one
// Workload, by pointer, so that the streams of their proxies share one message. It is forgotten with the last of them.

// An interner holds the Workloads that are in use. The zero interner has none.
type interner struct {
	mu   sync.Mutex
	used map[[sha256.Size]byte]weak.Pointer[rules.Workload] // by the digest of their texts
}

// intern returns the Workload in use that equals one, which is the same if there is none. Of nil it is nil.
func (i *interner) intern(workload *rules.Workload) *rules.Workload {
	if workload == nil {
		return nil
	}
	digest := sha256.Sum256(workload.AppendText(nil))

	i.mu.Lock()
	defer i.mu.Unlock()
	if used := i.used[digest].Value(); used != nil {
		return used
	}

	if i.used == nil {
		i.used = map[[sha256.Size]byte]weak.Pointer[rules.Workload]{}
	}
	i.used[digest] = weak.Make(workload)
	runtime.AddCleanup(workload, i.forget, digest)
	return workload
}

// forget drops a Workload that is in use no more, unless an equal one has come meanwhile.
func (i *interner) forget(digest [sha256.Size]byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.used[digest].Value() == nil {
		delete(i.used, digest)
	}
}
