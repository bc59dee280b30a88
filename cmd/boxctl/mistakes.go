// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/relay/render"
)

// flagMistake describes a wrong flag. The messages of pflag name Go types.
func flagMistake(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := "--" + e.GetSpecifiedName()
		if e.GetSpecifiedShortnames() != "" {
			name = "-" + e.GetSpecifiedName()
		}
		return &usageError{err: fmt.Errorf("%s: unknown flag %s", cmd.CommandPath(), render.Printable(name)), hint: flagHint(cmd, name)}
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return &usageError{err: fmt.Errorf("--%s: %s is missing", e.GetFlag().Name, cmp.Or(valueName(e.GetFlag()), "the value"))}
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		must := map[string]string{"int": "must be a whole number", "int64": "must be a whole number", "float64": "must be a number", "bool": "must be true or false"}[e.GetFlag().Value.Type()]
		if must == "" {
			must = e.Unwrap().Error()
		}
		return &usageError{err: fmt.Errorf("--%s %s: %s", e.GetFlag().Name, render.ShellWord(e.GetValue()), must)}
	}
	return &usageError{err: err}
}

// unknownCommand refuses an unknown command, and suggests the one that was probably meant.
func unknownCommand(parent *cobra.Command, name string) error {
	err := &usageError{err: fmt.Errorf("unknown command %q", strings.TrimSpace(strings.TrimPrefix(parent.CommandPath()+" ", parent.Root().Name()+" ")+name))}
	err.command = parent.CommandPath()
	known := commandNames(parent)
	if !parent.HasParent() {
		for _, habit := range slices.Collect(maps.Keys(commandHabits())) {
			known = append(known, strings.TrimPrefix(habit, "boxctl "))
		}
	}
	near := nearest(name, known)
	switch hint := habits(parent.CommandPath() + " " + name); {
	case hint != "":
		err.hint = hint
	case near != "":
		err.hint = cmp.Or(habits(parent.CommandPath()+" "+near), "did you mean "+parent.CommandPath()+" "+near+"?")
	}
	return err
}

func commandNames(parent *cobra.Command) []string {
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return names
}

// flagHint suggests a flag for one that a command does not have, "" if none is known.
func flagHint(cmd *cobra.Command, name string) string {
	if hint := habits(cmd.CommandPath() + " " + name); hint != "" {
		return hint
	}
	if here, ok := strings.CutPrefix(name, "--"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if near := nearest(here, names); near != "" {
			return "did you mean --" + near + "?"
		}
	}
	return habits(name)
}

// habits suggests what replaces a habit from docker, podman, systemctl or git: a command, a command with a flag, or a
// flag of any command. It returns "" if none is known.
func habits(typed string) string { return cmp.Or(commandHabits()[typed], flagHabits()[typed]) }

func commandHabits() map[string]string {
	return map[string]string{
		"boxctl build":     "boxctl images pull python:3.12 or boxctl images import FILE makes an image; boxctl images commit makes one of a box",
		"boxctl commit":    "boxctl images commit BOX NAME",
		"boxctl container": "boxctl ls lists boxes",
		"boxctl disable":   "boxctl drain stops new boxes",
		"boxctl down":      "boxctl rm --all removes your boxes",
		"boxctl enable":    "boxctl undrain takes new boxes again",
		"boxctl info":      "boxctl status",
		"boxctl journal":   "boxctl logs BOX",
		"boxctl kill":      "boxctl stop --grace 0s BOX PROCESS kills a process, boxctl rm BOX a box",
		"boxctl load":      "boxctl images import FILE",
		"boxctl log":       "boxctl logs BOX",
		"boxctl login":     "boxctl images pull --username NAME --password-stdin REF",
		"boxctl new":       "boxctl create BOX",
		"boxctl pause":     "boxctl freeze BOX; boxctl stop BOX frees its memory too",
		"boxctl port":      "boxctl forward BOX 8080:8080",
		"boxctl pull":      "boxctl images pull python:3.12",
		"boxctl push":      "boxctl drives push NAME s3://BUCKET/PREFIX pushes a drive; images stay on this host",
		"boxctl rename":    "a box keeps its name; boxctl create makes another",
		"boxctl restart":   "boxctl stop BOX, then boxctl start BOX; boxctl stop BOX PROCESS, then boxctl start BOX PROCESS -- PROGRAM",
		"boxctl rmi":       "boxctl images rm NAME",
		"boxctl search":    "boxctl images ls lists the images of this host",
		"boxctl show":      "boxctl inspect BOX",
		"boxctl ssh":       "boxctl shell BOX",
		"boxctl stats":     "boxctl top",
		"boxctl sh":        "boxctl shell, or boxctl shell BOX",
		"boxctl bash":      "boxctl shell, or boxctl shell BOX",
		"boxctl tag":       "boxctl images commit and import name an image when they make it",
		"boxctl unpause":   "boxctl thaw BOX",
		"boxctl up":        "boxctl create BOX",
		"boxctl update":    "boxctl set --memory 1GiB BOX",
		"boxctl volume":    "boxctl workspaces ls, boxctl drives ls",
		"boxctl volumes":   "boxctl workspaces ls, boxctl drives ls",
		"boxctl network":   "boxctl set --network-rule pypi.org BOX",
		"boxctl prune":     "boxctl images prune removes unused images, boxctl rm --all your boxes",
		"boxctl system":    "boxctl status, boxctl doctor",
		"boxctl touch":     "boxctl fs write BOX PATH </dev/null",
	}
}

func flagHabits() map[string]string {
	return map[string]string{
		"boxctl ps -a":       "boxctl ls lists boxes; boxctl ps BOX lists its processes, those that have ended among them",
		"boxctl ps --all":    "boxctl ls lists boxes; boxctl ps BOX lists its processes, those that have ended among them",
		"boxctl run --rm":    "leave it out: run always removes its box; boxctl create makes one that stays",
		"boxctl create --rm": "leave it out; --ttl 10m removes a box that is not used",

		"--add-host":     "a box resolves names by DNS alone; --network-rule allows it a host",
		"--cap-add":      "programs in a box have no capabilities",
		"--cap-drop":     "leave it out: programs in a box have no capabilities",
		"--chdir":        "--cwd DIRECTORY",
		"--cidfile":      "boxctl create prints the name of the box",
		"--cpu-shares":   "--cpu-weight WEIGHT",
		"--cpu-quota":    "--cpus NUMBER",
		"--device":       "a box has no devices of the host",
		"--detached":     "-d",
		"--dir":          "--cwd DIRECTORY",
		"--dns":          "a box resolves names by boxd; --network-rule says which",
		"--entrypoint":   "give the program after --",
		"--env-file":     "-e NAME=value, may be repeated",
		"--gpus":         "a box has no devices of the host",
		"--hostname":     "the name of a box is its host name: --name NAME",
		"--ip":           "boxd gives a box its address",
		"--limit-memory": "--memory SIZE",
		"--memory-max":   "--memory SIZE",
		"--memory-swap":  "--swap SIZE",
		"--mem":          "--memory SIZE",
		"--net":          "--network off, egress or host",
		"--pids-limit":   "--pids NUMBER",
		"--port":         "boxctl forward BOX 8080:8080",
		"--privileged":   "a box is never privileged; --writable-root lets programs change its root",
		"--publish":      "boxctl forward BOX 8080:8080",
		"--pull":         "boxctl images pull REF",
		"--read-only":    "leave it out: the root of a box is read-only without --writable-root",
		"--rm":           "boxctl rm BOX",
		"--shm-size":     "--tmp SIZE",
		"--storage-opt":  "--workspace-quota SIZE",
		"--tmpfs":        "--tmp SIZE; /tmp is always one",
		"--tty":          "-t",
		"--user":         "programs run as the box user; boxctl exec --user root, in a box with --writable-root",
		"--volume":       "-v SOURCE:TARGET",
		"--workdir":      "--cwd DIRECTORY",
		"-a":             "--all",
		"-u":             "programs run as the box user; boxctl exec --user root, in a box with --writable-root",
		"-P":             "boxctl forward BOX 8080:8080",
	}
}

// nearest returns the name with the smallest edit distance, "" if none is near.
func nearest(typed string, names []string) string {
	best, least := "", max(1, len(typed)/3)+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		if d := distance(typed, name); d < least {
			best, least = name, d
		}
	}
	if best == "" && len(typed) > 2 {
		if i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, typed) }); i >= 0 {
			return names[i]
		}
	}
	return best
}

// distance returns how many letters must be inserted, deleted, changed or swapped with the next to turn one word into the other.
func distance(a, b string) int {
	s, t := []rune(a), []rune(b)
	var before []int
	row := make([]int, len(t)+1)
	for j := range row {
		row[j] = j
	}
	for i := range s {
		next := make([]int, len(t)+1)
		next[0] = i + 1
		for j := range t {
			change := row[j]
			if s[i] != t[j] {
				change++
			}
			next[j+1] = min(change, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && s[i] == t[j-1] && s[i-1] == t[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(t)]
}
