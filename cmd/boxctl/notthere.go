// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// program is what run or exec runs, to explain what is missing if it fails.
type program struct {
	argv []string
	id   string                             // of the box; "": a new one
	full bool                               // the box has files from elsewhere
	has  func(context.Context, string) bool // whether an existing box has a file
}

var imageWord = regexp.MustCompile(`^[a-z0-9][a-z0-9./_-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// noProgram describes a program that the box lacks, with a hint that is "" if none is known.
func (p *program) noProgram(name string) (text, hint string) {
	text = fmt.Sprintf("no program %q in the box", name)
	if p == nil || len(p.argv) == 0 || p.argv[0] != name {
		return text, ""
	}
	line := render.ShellWord(strings.Join(p.argv, " "))
	distributions := []string{"alpine", "archlinux", "busybox", "centos", "debian", "fedora", "ubuntu"}
	switch {
	case slices.Contains([]string{"cd", "source", ".", "export", "alias", "set", "unset", "ulimit", "umask", "exec", "eval", "type", "history", "pushd", "popd"}, name):
		return text, name + " is a command of the shell; -c runs a line with the shell, for example -c " + line
	case strings.ContainsAny(name, " \t|&;<>$*"):
		return text, "-c runs a line with the shell, for example -c " + line
	case imageWord.MatchString(name) || slices.Contains(distributions, name):
		words := []string{"boxctl", "run", "--image", name, "--"}
		for _, arg := range p.argv[1:] {
			words = append(words, render.ShellWord(arg))
		}
		if len(p.argv) == 1 {
			words = append(words, "bash")
		}
		return text, strings.Join(words, " ")
	}
	return text, p.hereHint(name)
}

// hereHint says how a file of the current directory gets into the box, "" if there is no such file.
func (p *program) hereHint(name string) string {
	if info, err := os.Stat(name); p.full || err != nil || info.IsDir() || filepath.IsAbs(name) || strings.HasPrefix(path.Clean(name), "..") {
		return ""
	}
	how := "boxctl run --here"
	if p.id != "" {
		how = "boxctl cp " + render.ShellWord(name) + " " + render.ShellWord(p.id) + ":"
	}
	return fmt.Sprintf("the box does not have the file %s of this directory: %s", render.Printable(name), how)
}

// missingFile returns a hint about the file that a failed program was most likely to read, "" if none is known: the
// first argument of an interpreter that is a local file and not in the box.
func (p *program) missingFile(ctx context.Context) string {
	if p == nil || len(p.argv) < 2 {
		return ""
	}
	name := strings.TrimRight(path.Base(p.argv[0]), "0123456789.")
	if !slices.Contains([]string{"python", "node", "deno", "bun", "ruby", "perl", "php", "lua", "sh", "bash", "dash", "zsh", "java", "go", "cat", "pip"}, name) {
		return ""
	}
	for _, arg := range p.argv[1:] {
		if strings.HasPrefix(arg, "-") {
			if arg == "-c" || arg == "-e" || arg == "-m" {
				return "" // what follows is no file
			}
			continue
		}
		if hint := p.hereHint(arg); hint != "" && (p.has == nil || !p.has(ctx, arg)) {
			return hint
		}
		return ""
	}
	return ""
}

// programOf returns what exec runs in an existing box, whose files it can list.
func programOf(c *client.Client, id, cwd string, argv []string) *program {
	return &program{argv: argv, id: id, has: func(ctx context.Context, name string) bool {
		if path.Base(name) != path.Clean(name) {
			return true // unknown
		}
		// It lists the directory, which exists: a query for a missing file would be one more error in boxctl errors.
		list, err := c.ListFiles(ctx, id, &api.FileList{Path: cwd})
		return err != nil || list.Truncated || slices.ContainsFunc(list.Entries, func(e api.File) bool { return path.Base(e.Path) == path.Base(name) })
	}}
}

// explain prints a hint if a program has failed, most likely for want of a file of the current directory.
func (a *app) explain(ctx context.Context, err error) error {
	if code, ok := errors.AsType[exitError](err); ok && !a.json && !a.hinted && (code == 1 || code == 2 || code == exitNotFound) {
		if hint := a.program.missingFile(ctx); hint != "" {
			a.printMessage("hint", hint)
		}
	}
	return err
}
