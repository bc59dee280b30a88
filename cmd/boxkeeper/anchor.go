// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// anchorCommand is the argument that makes boxkeeper the anchor, the process of boxd-boxes.service.
const anchorCommand = "anchor"

// anchorGroup is the child of the unit's own cgroup into which the anchor moves itself. Once it
// has a process, the controllers are on.
const anchorGroup = "anchor"

const (
	ownGroup = "/proc/self/cgroup"

	// delegatedMark is the extended attribute by which systemd marks a delegated cgroup (its
	// CGROUP_DELEGATION.md).
	delegatedMark = "user.delegate"
)

// anchor turns the cgroup it was started in into one that can contain boxes, and returns at
// SIGTERM. Controllers that the kernel lacks are logged; the host check reports what follows from
// that.
func anchor(log *log.Logger) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	defer signal.Stop(stop)
	var mount unix.Statfs_t
	if err := unix.Statfs(cgroup.Mount, &mount); err != nil {
		return fmt.Errorf("%s: %w", cgroup.Mount, err)
	}
	if mount.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%s is not cgroup v2: boot with systemd.unified_cgroup_hierarchy=1", cgroup.Mount)
	}
	text, err := os.ReadFile(ownGroup)
	if err != nil {
		return err
	}
	path, err := unifiedPath(string(text))
	if err != nil {
		return err
	}
	group := filepath.Join(cgroup.Mount, path)
	mark := make([]byte, 8)
	if n, err := unix.Getxattr(group, delegatedMark, mark); err != nil || string(mark[:n]) != "1" {
		return fmt.Errorf("%s is not delegated: systemctl start boxd-boxes.service, which has Delegate=yes", group)
	}
	missing, err := enterAnchor(group)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		log.Printf("cannot enforce all limits: %s has no controller %s", group, strings.Join(missing, ", "))
	}
	<-stop
	return nil
}

// unifiedPath returns the cgroup v2 path in a text in the format of /proc/self/cgroup.
func unifiedPath(text string) (string, error) {
	for line := range strings.Lines(text) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		switch {
		case !ok:
		case path == "/" || !strings.HasPrefix(path, "/") || slices.Contains(strings.Split(path, "/"), ".."):
			return "", fmt.Errorf("own cgroup is %q: must be below %s", path, cgroup.Mount)
		default:
			return path, nil
		}
	}
	return "", errors.New("no cgroup v2 entry in " + ownGroup)
}

// enterAnchor moves the calling process into the anchor's cgroup, and enables the controllers
// that limit boxes for the cgroups beside it. It returns the controllers that this host lacks.
func enterAnchor(group string) (missing []string, err error) {
	leaf := filepath.Join(group, anchorGroup)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the anchor's group: %w", err)
	}
	// First of all: a cgroup with processes cannot enable controllers for its children.
	if err := writeGroupFile(leaf, "cgroup.procs", "0"); err != nil {
		return nil, fmt.Errorf("move into the anchor's group: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("read the controllers: %w", err)
	}
	has := strings.Fields(string(text))
	var on []string
	for _, name := range []string{"cpu", "io", "memory", "pids"} {
		if slices.Contains(has, name) {
			on = append(on, "+"+name)
		} else {
			missing = append(missing, name)
		}
	}
	if len(on) == 0 {
		return missing, nil
	}
	err = writeGroupFile(group, "cgroup.subtree_control", strings.Join(on, " "))
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("enable controllers: %w: other processes are in %s itself", err, group)
	}
	if err != nil {
		return nil, fmt.Errorf("enable controllers: %w", err)
	}
	return missing, nil
}

// writeGroupFile writes with one system call, as the kernel expects, and never creates a file.
func writeGroupFile(group, name, text string) error {
	f, err := os.OpenFile(filepath.Join(group, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}
