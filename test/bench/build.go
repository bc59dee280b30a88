// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// programs are the programs of a daemon and its boxes.
var programs = []string{"boxd", "boxkeeper", "boxnet", "boxinit", "boxfiles"}

// build builds the programs of a source tree into dir, with the files in overlay, by path, replaced or added.
func build(ctx context.Context, tree, dir string, overlay map[string][]byte) error {
	args := []string{"build", "-trimpath", "-ldflags", "-s -w"}
	if len(overlay) > 0 {
		overlay, err := writeOverlay(tree, dir+".overlay", overlay)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	args = append(args, "-o", dir+"/")
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(tree, "cmd", name)); err == nil { // an earlier tree has no boxnet
			args = append(args, "./cmd/"+name)
		}
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs of %s: %w: %s", tree, err, out)
	}
	return nil
}

// writeOverlay writes the input of go build -overlay into a new directory.
func writeOverlay(tree, dir string, overlay map[string][]byte) (path string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, text := range overlay {
		at, err := filepath.Abs(filepath.Join(tree, name))
		if err != nil {
			return "", err
		}
		replace[at] = filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(replace[at], text, 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}

// checkOut creates a worktree of a commit in dir; remove removes it.
func checkOut(ctx context.Context, rev, dir string) (remove func(), err error) {
	if out, err := exec.CommandContext(ctx, "git", "worktree", "add", "--detach", dir, rev).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("check out %s: %w: %s", rev, err, out)
	}
	return func() {
		_ = exec.CommandContext(context.WithoutCancel(ctx), "git", "worktree", "remove", "--force", dir).Run() // git worktree prune removes leftovers
	}, nil
}
