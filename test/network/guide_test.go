// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"os"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// The commands of the guide's page about networks do what it says, for a user other than root, in a world with the servers of
// example.org.
func TestCommandsOfTheGuideToNetworksDoWhatItSays(t *testing.T) {
	boxtest.RequireSources(t)
	for _, program := range []string{"bash", "curl"} {
		boxtest.RequireProgram(t, program)
	}
	w := newWorld(t)
	z := newZone(t, w)
	z.set("example.org.", web4)
	z.set("www.example.org.", web4)
	page, err := os.ReadFile("../../docs/guide/network.md")
	must(t, err)
	d := boxtest.StartWith(t, "http = \"127.0.0.1:0\"\n"+boxtest.BestEffort, byName)
	boxtest.NewGuide(t, d).Follow(string(page))
	if !z.wasQueried("www.example.org") {
		t.Error("the name www.example.org was not resolved")
	}
}
