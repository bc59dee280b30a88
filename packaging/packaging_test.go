// SPDX-License-Identifier: Apache-2.0

package packaging_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// pages lists the manual pages that packages ship.
func pages(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("man/*.[1578]")
	if err != nil || len(list) == 0 {
		t.Fatalf("no pages in man: err = %v, want no error and len(list) != 0", err)
	}
	return list
}

// need returns a program that reads pages or completion.
func need(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		boxtest.Missing(t, "the program "+name)
	}
	return path
}

// Both readers of pages that hosts have find nothing wrong with ours: mandoc, and man with groff as lintian calls
// it. Of what mandoc calls style, much depends on the pages that a host has.
func TestManualPagesAreClean(t *testing.T) {
	t.Parallel()
	mandoc, man := need(t, "mandoc"), need(t, "man")
	for _, page := range pages(t) {
		out, err := exec.CommandContext(t.Context(), mandoc, "-T", "lint", "-W", "warning", page).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("mandoc: err = %v, want no error and len(out) == 0:\n%s", err, out)
		}
		cmd := exec.CommandContext(t.Context(), man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page)
		cmd.Env = append(os.Environ(), "MANROFFSEQ=", "MANWIDTH=80", "LC_ALL=C.UTF-8")
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil || said.Len() > 0 {
			t.Errorf("man %s: err = %v, want no error and said.Len() <= 0:\n%s", page, err, said.String())
		}
	}
}

// ours are references to pages of this project, in any form a page has them.
var ours = regexp.MustCompile(`(?m)\b(box[a-z.\\-]*)[ "]*\(?([1578])\)?`)

func TestPagesReferToPagesThatExist(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, ".BR box") && !strings.HasPrefix(line, ".Xr box") {
				continue
			}
			for _, m := range ours.FindAllStringSubmatch(line, -1) {
				name := strings.ReplaceAll(m[1], `\-`, "-") + "." + m[2]
				if _, err := os.Stat(filepath.Join("man", name)); err != nil {
					t.Errorf("%s refers to %s: %v", page, name, err)
				}
			}
		}
	}
}

func TestCompletionIsReadByItsShells(t *testing.T) {
	t.Parallel()
	for _, argv := range [][]string{{"bash", "-n", "completion/boxctl.bash"}, {"zsh", "-f", "-n", "completion/_boxctl"}, {"fish", "--no-config", "-n", "completion/boxctl.fish"}} {
		if out, err := exec.CommandContext(t.Context(), need(t, argv[0]), argv[1:]...).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%q: err = %v, out = %s, want no error and len(out) == 0", argv, err, out)
		}
	}
}

// A shell that has read our script asks boxctl, here one that knows a single session, and offers what it says.
func TestCompletionOffersWhatBoxctlSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const boxctl = "#!/bin/sh\nprintf 'work\\tready, default\\n:4\\n'\n"
	if err := os.WriteFile(filepath.Join(dir, "boxctl"), []byte(boxctl), 0o755); err != nil {
		t.Fatal(err)
	}
	for shell, script := range map[string]string{
		"bash": "source completion/boxctl.bash; COMP_WORDS=(boxctl rm w); COMP_CWORD=2; COMP_LINE='boxctl rm w'; COMP_POINT=11; COMP_TYPE=9\n" +
			"_get_comp_words_by_ref() { cur=w prev=rm words=(boxctl rm w) cword=2; }; __ltrim_colon_completions() { :; }; compopt() { :; }\n" +
			"__start_boxctl boxctl w rm; echo \"${COMPREPLY[@]}\"",
		"fish": "source completion/boxctl.fish; complete -C 'boxctl rm w'",
	} {
		argv := map[string][]string{"bash": {"--norc", "-c", script}, "fish": {"--no-config", "-c", script}}[shell]
		cmd := exec.CommandContext(t.Context(), need(t, shell), argv...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "XDG_DATA_HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "work") {
			t.Errorf(`%s: err = %v, out = %q, want no error and out starting with "work"`, shell, err, out)
		}
	}
}
