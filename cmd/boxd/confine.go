// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// confinedVariable is set in the environment of a confined boxd.
const confinedVariable = "BOXD_CONFINED"

// confine takes from boxd what it could do to the host, as root or as a user of its own: send signals to processes outside of it, connect
// to their abstract Unix sockets, and open files that it does not need, as far as the kernel supports that (Landlock). What the keeper has below the state
// directory is among those files. It executes boxd again: all its threads must have the same restrictions, and the runtime's own signals
// between them must arrive.
func confine(ctx context.Context, cfg *Config, config string) error {
	if os.Getenv(confinedVariable) != "" {
		return os.Unsetenv(confinedVariable) // no child may inherit it
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("confine boxd: %w", err)
	}
	lock, err := lockState(cfg.Daemon.StateDir, linux.StartPatience)
	if err != nil {
		return err
	}
	lock.Close()
	for _, dir := range cfg.socketDirs() { // a rule is for what is there; without it the reason is told by who needs it
		_ = os.MkdirAll(dir, 0o755)
	}
	runtime.LockOSThread() // execve keeps the restrictions of this thread
	if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
		err = restrict(append(cfg.fileRules(config), fileRule{own, runFile}))
	}
	if err != nil {
		return fmt.Errorf("confine boxd: %w", err)
	}
	select {
	case <-ctx.Done(): // the next program would not know that it is to end
		return nil
	default:
	}
	env := append(os.Environ(), confinedVariable+"=1", "TMPDIR="+filepath.Join(cfg.Daemon.StateDir, statedir.Daemon)) // where it may make files
	if err := unix.Exec(own, os.Args, env); err != nil {
		return fmt.Errorf("execute %s: %w", own, err)
	}
	return nil
}

// fileRules are the files that a boxd with this configuration may open if it is confined.
func (c *Config) fileRules(config string) []fileRule {
	state := c.Daemon.StateDir
	rules := []fileRule{
		{state, listFiles}, // it looks for workspaces that nobody has any more
		{filepath.Join(state, "lock"), useFile},
		{"/usr", readFiles},
		{"/etc", readFiles},                     // users and groups: their files are replaced by others
		{"/var/lib/ca-certificates", readFiles}, // where /etc/ssl leads to on openSUSE
		{"/proc", readFiles},
		{"/sys", readFiles},
		{os.DevNull, useFile},
		{"/dev/kmsg", readFiles},
	}
	for _, dir := range c.socketDirs() {
		rules = append(rules, fileRule{dir, writeFiles})
	}
	for _, name := range ownDirs {
		rules = append(rules, fileRule{filepath.Join(state, name), writeFiles})
	}
	dropIn := dropInDirs(config)
	found, _ := dropIns(dropIn) // the configuration has been read
	for _, path := range slices.Concat(dropIn, c.around(append(found, config)), c.readable()) {
		rules = append(rules, fileRule{path, readFiles})
	}
	return rules
}

// socketDirs are the directories that boxd makes sockets in.
func (c *Config) socketDirs() []string {
	dirs := []string{c.Daemon.RuntimeDir, filepath.Dir(c.Daemon.Socket)}
	if c.Fleet.Socket != "" {
		dirs = append(dirs, filepath.Dir(c.Fleet.Socket))
	}
	return dirs
}

// named returns the files that the configuration names for boxd to read.
func (c *Config) named() []string {
	files := []string{c.Access.Tokens, c.Daemon.Certificate, c.Daemon.PrivateKey, c.Daemon.ClientCA, c.Daemon.ClientCRL, c.LangBot.TokenFile, c.E2B.Certificate, c.E2B.Key, c.Traces.HeadersFile, c.Traces.CA}
	for _, s := range c.Secrets {
		files = append(files, s.File, s.Authorities)
	}
	for _, b := range c.Buckets {
		files = append(files, b.File)
	}
	return slices.DeleteFunc(files, func(file string) bool { return file == "" })
}

// readable returns what has to be readable for the files that the configuration names; see around.
func (c *Config) readable() []string {
	files := c.named()
	if dir := access.Credentials(); dir != "" {
		files = append(files, dir)
	}
	return c.around(files)
}

// around returns the directories of files, and of what they lead to if they are links: certificates are renewed by a new file in the directory
// of the old one. Of a file in a directory that has the state directory in it, it returns the file: the keeper's are there too.
func (c *Config) around(files []string) (paths []string) {
	add := func(file string) {
		if dir := filepath.Dir(file); !below(c.Daemon.StateDir, dir) {
			file = dir
		}
		paths = append(paths, file)
	}
	for _, file := range files {
		add(file)
		if to, err := filepath.EvalSymlinks(file); err == nil {
			add(to)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// below reports whether a path is a directory or below it.
func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// checkConfined reports what keeps a boxd that is taken over from files of the host.
func checkConfined() isolation.Check {
	c := isolation.Check{Name: "files of boxd", Detail: "boxd opens its own files, those that its configuration names, and /etc, /usr, /proc and /sys (Landlock)"}
	switch {
	case canRestrictFiles():
	case os.Geteuid() != 0:
		c.Detail = "boxd has a user of its own, and opens what that may"
	default:
		c.Level, c.Detail = isolation.CheckWarn, "boxd is root, and nothing but AppArmor, if that is enabled, keeps it from other files of the host"
		c.Hint = "boot a kernel from Linux 5.19 on with Landlock among its security modules (lsm=)"
	}
	return c
}
