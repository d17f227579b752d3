package main

import (
	"strings"
	"testing"
)

// TestCases are the contract cases of the flags.
func TestCases(t *testing.T) {
	t.Run("T05", testFlagsThatMakeNoSense)
	t.Run("T06", testTransportMode)
}

// T05: what cannot be served refuses to start, and so does a replica without a name.
func testFlagsThatMakeNoSense(t *testing.T) {
	refuses(t, "-enable-ipv6", "-enable-endpoint-slices=false")
	refuses(t, "-stream-queue-capacity=0")
	refuses(t, "-meshed-http2-client-params={")
	t.Setenv("HOSTNAME", "")
	err := command([]string{"serve", "-kubeconfig=/nowhere/at/all"}).Execute()
	if err == nil || !strings.Contains(err.Error(), "HOSTNAME") {
		t.Errorf("without HOSTNAME: %v", err)
	}
}

// T06: a mode that does not exist is not taken for another one.
func testTransportMode(t *testing.T) { refuses(t, "-outbound-transport-mode=weird") }
