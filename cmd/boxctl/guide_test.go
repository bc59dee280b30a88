// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Every command of these pages does what the page says, for a user other than root and in this order.
func TestCommandsOfTheGuideDoWhatItSays(t *testing.T) {
	t.Parallel()
	boxtest.RequireRoot(t)
	boxtest.RequireSources(t)
	for _, program := range []string{"bash", "curl", "python3", "tar"} {
		boxtest.RequireProgram(t, program)
	}
	for name, more := range map[string]string{
		"../../README.md": "", "../terminal.svg": "", "first-box.md": "", "processes-and-mcp.md": "", "access.md": "", "observing.md": "", "agents.md": "", "skills.md": "", "workspaces.md": "",
		"files.md": "", "policy.md": "", "e2b.md": "",
		"images.md": fmt.Sprintf("[principals.guide]\nrole = \"operator\"\nuid = %d\n", boxtest.GuideUser), // those of test/network have a network
	} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			page, err := os.ReadFile(filepath.Join("../../docs/guide", name))
			if err != nil {
				t.Fatal(err)
			}
			d := boxtest.Start(t, "[mounts]\nallow = [\"%DIR%/home\"]\n"+more)
			g := boxtest.NewGuide(t, d)
			if name == "images.md" {
				rootArchive(t, filepath.Join(g.Home, "rootfs.tar"))
			}
			text := string(page)
			if filepath.Ext(name) == ".svg" {
				text = picture(text)
			}
			g.Follow(text)
		})
	}
}

var textOfSVG = regexp.MustCompile(`<text[^>]*>(.*)</text>`)

// picture returns the text of a terminal picture, as an indented block of a page.
func picture(svg string) string {
	var block strings.Builder
	for _, m := range textOfSVG.FindAllStringSubmatch(svg, -1) {
		block.WriteString("    " + html.UnescapeString(m[1]) + "\n")
	}
	return block.String()
}

// rootArchive writes an archive of a root directory with sh, cat and what they need.
func rootArchive(t *testing.T, name string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ldd", "/bin/sh", "/bin/cat").Output()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-C", "/", "-chf", name, "--no-recursion", "bin/sh", "bin/cat", "usr/local/share"}
	for _, m := range regexp.MustCompile(`/(\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		if !slices.Contains(args, m[1]) {
			args = append(args, m[1])
		}
	}
	if out, err := exec.CommandContext(t.Context(), "tar", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
