// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// TestMain makes the static test binary act as the shell of an image that these tests create.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "sh" {
		os.Exit(m.Run())
	}
	fmt.Println("the image's shell:", os.Args[len(os.Args)-1])
}

// imports creates an image that has a shell.
func (b *bot) imports(t *testing.T, name string) {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	archive := bytes.NewReader(boxtest.Tar(0o755, map[string]string{"bin/sh": string(program)}))
	if _, err := b.ImportImage(t.Context(), archive, name, "rootfs"); err != nil {
		t.Fatal(err)
	}
}

// in calls box_exec in a session with an image, and returns its output.
func (c *rpc) in(session, image, cmd string) any {
	c.t.Helper()
	var r map[string]any
	c.gets("box_exec", fmt.Sprintf(`{"session_id":%q,"image":%q,"cmd":%q}`, session, image, cmd), &r)
	return r["stdout"]
}

// A session has the image that LangBot names, if that is on this host, and otherwise the one of its profile.
func TestASessionHasTheImageThatLangBotNames(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	b.imports(t, "docker.io/library/tools:1")
	var s map[string]any
	c.gets("box_create_session", `{"session_id":"a","image":"tools:1"}`, &s)
	if got := c.in("a", "tools:1", "hello"); got != "the image's shell: hello" || s["image"] != "tools:1" {
		t.Errorf(`got %v, s = %v, want got == "the image's shell: hello" and s["image"] == "tools:1"`, got, s)
	}
	if got := c.in("b", "tools:2", "echo the host"); got != "the host" {
		t.Errorf(`of an image that is not there: got %v, want "the host"`, got)
	}
	b.imports(t, "tools:2") // running sessions keep theirs
	if err := b.DeleteImage(t.Context(), "docker.io/library/tools:1"); err != nil {
		t.Error(err)
	}
	if got := [2]any{c.in("a", "tools:1", "again"), c.in("b", "tools:2", "echo the host")}; got != [2]any{"the image's shell: again", "the host"} {
		t.Errorf(`images that were imported and removed: got %v, want [2]any{"the image's shell: again", "the host"}`, got)
	}
	c.refused("box_create_session", `{"session_id":"a","image":"tools:2"}`, "BoxSessionConflictError: Box session PHYS-a already exists with image=tools:1")
}

func TestAnImageThatIsMissingCanBeRefused(t *testing.T) {
	t.Parallel()
	b := start(t, "missing_image = \"refuse\"\n")
	c := b.dial(t)
	c.refused("box_create_session", `{"session_id":"a","image":"tools:1"}`, `BoxValidationError: no image "tools:1" on this host (the operator can run boxctl images pull, or set langbot.missing_image in box.toml)`)
	c.refused("box_create_session", `{"session_id":"a","image":"`+strings.Repeat("x", 300)+`"}`, "BoxValidationError: no image…")
	if ids := c.sessions(); len(ids) > 0 {
		t.Errorf("there are %q, want len(ids) == 0", ids)
	}
	b.imports(t, "tools:1")
	if got := c.in("a", "tools:1", "hello"); got != "the image's shell: hello" {
		t.Errorf(`got %v, want "the image's shell: hello"`, got)
	}
	if got := c.in("b", "", "echo the host"); got != "the host" {
		t.Errorf(`of no image: got %v, want "the host"`, got)
	}
}

// A profile that locks its image applies it, whatever LangBot names.
func TestAProfileKeepsItsImage(t *testing.T) {
	t.Parallel()
	b := start(t, "missing_image = \"refuse\"\nprofile = \"mine\"\n[profiles.mine]\nlocked = [\"image\"]\n")
	b.imports(t, "tools:1")
	if got := b.dial(t).in("a", "tools:1", "echo the host"); got != "the host" {
		t.Errorf(`got %v, want "the host"`, got)
	}
}
