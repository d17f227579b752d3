package main

import "runtime/debug"

// version is set by the linker when a release is built.
var version = ""

// binaryVersion returns the version of a release, or of the module that go install has built.
func binaryVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "development"
	}
	return info.Main.Version
}
