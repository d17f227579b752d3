package controlplane

import (
	"strings"
	"testing"
)

// A kwok is given no function that it does not have.
func TestStagesOf(t *testing.T) {
	for version, many := range map[string]bool{
		"kwok version v0.7.0 go1.26.8 (linux/amd64)\n": false,
		"kwok version v0.8.0 go1.26.8 (linux/amd64)\n": true,
	} {
		text := string(stagesOf([]byte(version)))
		if strings.Contains(text, "IPsWith") != many || strings.Contains(text, "IPWith") == many {
			t.Errorf("the stages of %s are in the words of another", version)
		}
	}
}
