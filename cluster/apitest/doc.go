// Package apitest is a Kubernetes API in memory, for tests under [testing/synctest]: real clients, real
// informers and real TLS, on virtual time and without a network. It knows what informers and status writers
// need (lists, streamed or by pages, watch from a version, bookmarks, selectors, metadata only, patches of
// the status, server-side apply with owners of fields) and the faults that tests are about: no answer,
// refused connections, refused credentials, missing rights, missing resources, errors, silent watches, an
// older state that is restored. It validates nothing; real API servers are the business of the end-to-end
// tests.
package apitest
