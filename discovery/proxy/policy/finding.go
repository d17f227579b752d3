package policy

import (
	"errors"
	"fmt"
)

// The classes of what may be wrong with a policy, the worst first.
var (
	ErrInvalid     = errors.New("the proxy refuses the policy")
	ErrPanic       = errors.New("the proxy panics")
	ErrFailsAtOnce = errors.New("requests fail at once")
	ErrOdd         = errors.New("the proxy takes it otherwise")
)

// A Finding is one thing that is wrong with a policy. It wraps its class.
type Finding struct {
	Field  string // its path in the message, such as protocol.http1.routes[0].rules[2].backends
	Reason string
	class  error
}

// Error returns the field, the reason and the class.
func (f Finding) Error() string { return fmt.Sprintf("%s: %s: %v", f.Field, f.Reason, f.class) }

// Unwrap returns the class.
func (f Finding) Unwrap() error { return f.class }

// findings are those of one message, in the order of its fields.
type findings []Finding

// of returns the findings of one class.
func (f findings) of(class error) []Finding {
	var some []Finding
	for _, finding := range f {
		if errors.Is(finding, class) {
			some = append(some, finding)
		}
	}
	return some
}

// worst returns the findings of the worst class as one error; nil if all are odd at most.
func (f findings) worst() error {
	for _, class := range []error{ErrInvalid, ErrPanic, ErrFailsAtOnce} {
		var errs []error
		for _, finding := range f.of(class) {
			errs = append(errs, finding)
		}
		if errs != nil {
			return errors.Join(errs...)
		}
	}
	return nil
}

// usable reports whether a proxy with such a policy goes on.
func usable(worst error) bool { return worst == nil || errors.Is(worst, ErrFailsAtOnce) }
