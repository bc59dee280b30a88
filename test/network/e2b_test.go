// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// E2B clients can restrict the network of a sandbox when they create it, and change it later.
func TestClientsOfE2BSetTheNetworkOfTheirSandboxes(t *testing.T) {
	packages := boxtest.NPM(t, boxtest.E2BPackages) // later npm is unreachable
	w := newWorld(t)
	newZone(t, w).set("allowed.example.", public4)
	at := boxtest.FreeAddress(t, "127.0.0.1")
	key, hash := access.NewToken()
	tokens := filepath.Join(boxtest.TempDir(t), "tokens")
	must(t, os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"agent\"\nsha256 = %q\nprincipal = \"agent\"\n", hash), 0o600))
	boxtest.Start(t, byName+fmt.Sprintf("[access]\ntokens = %q\n[principals.agent]\nrole = \"user\"\n[e2b]\nlisten = %q\n", tokens, at))
	source, err := os.ReadFile("testdata/e2b.mjs")
	must(t, err)
	file, err := os.CreateTemp(packages, "network-*.mjs") // beside the modules it imports
	must(t, err)
	defer os.Remove(file.Name())
	_, err = file.Write(source)
	must(t, err)
	must(t, file.Close())
	cmd := exec.CommandContext(t.Context(), boxtest.Node(t), file.Name())
	cmd.Env = append(os.Environ(), "E2B_API_KEY="+key, "E2B_API_URL=http://"+at, "E2B_SANDBOX_URL=http://"+at)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "done\n" {
		t.Errorf("err = %v, want no error and out == \"done\\n\":\n%s", err, out)
	}
}
