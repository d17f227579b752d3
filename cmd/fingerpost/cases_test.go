package main

import (
	"flag"
	"os"
	"testing"
)

// TestCases are the contract cases of the flags.
func TestCases(t *testing.T) {
	t.Run("T05", testFlagsThatMakeNoSense)
	t.Run("T06", testTransportMode)
	t.Run("PP10", testClusterNetworks)
	t.Run("PP11", testChartFlags)
	t.Run("PP12", testWithoutWebhook)
	t.Run("PP14", testWithoutHostname)
	t.Run("IC45", testUnreadableLifetime)
	t.Run("IC70", testIdentityChartFlags)
	t.Run("IC71", testIdentityDomains)
}

// T05: what cannot be served refuses to start, and a replica without HOSTNAME has the name of its host. What
// is wrong with flags is reported before anything is read.
func testFlagsThatMakeNoSense(t *testing.T) {
	refuses(t, "-enable-ipv6", "-enable-endpoint-slices=false")
	refuses(t, "-stream-queue-capacity=0")
	refuses(t, "-meshed-http2-client-params={")
	refuses(t, "-log-level=loud", "-kubeconfig=/nowhere/at/all")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}

	for set, want := range map[string]string{"": host, "pod": "pod"} {
		t.Setenv("HOSTNAME", set)
		var o serveOptions
		fs := flag.NewFlagSet("serve", flag.ContinueOnError)
		o.addFlags(fs)
		if err := o.validate(); err != nil || o.Replica != want {
			t.Errorf("with HOSTNAME=%s: %q %v, want %q", set, o.Replica, err, want)
		}
	}
}

// T06: a mode that does not exist is not taken for another one.
func testTransportMode(t *testing.T) { refuses(t, "-outbound-transport-mode=weird") }
