// Package repo has the tests of the repository as a whole, and no code: which package may import which, that
// pages name what exists, that generated files are up to date, and what the image holds.
//
// They belong to no package of the product, and a folder of their own keeps Go files out of the root. They
// look at every source file of the module, so that go test runs them again after any change.
package repo
