// Package watch holds levels: values that readers wait on.
//
// It is the only concurrency primitive of the project. A level has a newest value and nothing else: no
// queue, no history, no callbacks. A reader loads the newest value together with a channel that closes
// once that value is superseded, works, and then waits on the channel. A reader that is slow skips
// values and can never miss the last one.
//
//   - [Value] is one level.
//   - [Table] is a level per key, which exists while it has a value or a watcher.
//   - [Bell] lets one waiter wait on many of both.
package watch
