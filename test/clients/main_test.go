// SPDX-License-Identifier: Apache-2.0

// Package clients_test runs the clients in other languages, with all examples, against a real boxd with real boxes.
package clients_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// host is a boxd that listens on a socket and on loopback addresses.
type host struct {
	*boxtest.Daemon
	env []string // tells clients where it is
}

// start starts a boxd; more is configuration.
func start(t *testing.T, more ...string) *host {
	t.Helper()
	return startAt(t, "", more...)
}

// startAt is like start, with a state_dir line.
func startAt(t *testing.T, state string, more ...string) *host {
	t.Helper()
	address, byTLS := boxtest.FreeAddress(t, "127.0.0.2"), boxtest.FreeAddress(t, "127.0.0.1")
	ca := boxtest.NewAuthority(t)
	certificate, key := ca.Server()
	token, hash := access.NewToken()
	tokens := filepath.Join(boxtest.TempDir(t), "tokens")
	if err := os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"agent\"\nsha256 = %q\nprincipal = \"agent\"\n", hash), 0o600); err != nil {
		t.Fatal(err)
	}
	d := boxtest.StartWith(t, state+fmt.Sprintf("http = %q\nhttps = %q\ncertificate = %q\nprivate_key = %q\nclient_ca = %q\n", address, byTLS, certificate, key, ca.File)+
		boxtest.BestEffort+boxtest.MountSources+"[queue]\nwait = \"5m\"\n",
		fmt.Sprintf("[access]\ntokens = %q\n[principals.agent]\nrole = \"user\"\n[principals.known]\nrole = \"user\"\ncertificates = [\"CN:known\"]\n", tokens), strings.Join(more, "\n"))
	source := d.MountSource(t, "data", 0)
	return &host{Daemon: d, env: append(os.Environ(), "BOXD_SOCKET="+d.Socket, "BOXD_HTTP=http://"+address, "BOXD_HTTP_TOKEN="+token, "BOXD_TEST_SOURCE="+source, "NO_COLOR=1",
		"BOXD_HTTPS=https://"+byTLS, "BOXD_TEST_CA="+ca.File, "BOXD_TEST_CERT="+known(t, ca), "BOXD_TEST_STRANGER="+known(t, boxtest.NewAuthority(t)))}
}

// known returns a file with a client certificate and its key.
func known(t *testing.T, ca *boxtest.Authority) string {
	t.Helper()
	certificate, key := ca.Client(time.Hour, "CN:known")
	text, err := os.ReadFile(certificate)
	if err == nil {
		var more []byte
		more, err = os.ReadFile(key)
		text = append(text, more...)
	}
	file := filepath.Join(boxtest.TempDir(t), "known.pem")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// runs runs a program in a directory, and returns its output.
func (h *host) runs(t *testing.T, dir string, env []string, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, slices.Concat(h.env, env)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s%s", strings.Join(argv, " "), err, out, &problems)
	}
	return string(out) + problems.String()
}

// need requires a program of this host that runs a client.
func need(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		boxtest.Missing(t, "the program "+name)
	}
}
