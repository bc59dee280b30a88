// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
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

// confine takes from boxd what as root it could do to the host: send signals to processes outside of it, connect to their abstract Unix
// sockets, and open files that it does not need, as far as the kernel supports that (Landlock). What the keeper has below the state
// directory is among those files. It executes boxd again: all its threads must have the same restrictions, and the runtime's own signals
// between them must arrive. Files that a configuration names later must be where boxd may read already; see readable.
func confine(cfg *Config, config string) error {
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
	// A rule is for what is there.
	err = errors.Join(os.MkdirAll(cfg.Daemon.RuntimeDir, 0o755), os.MkdirAll(filepath.Dir(cfg.Daemon.Socket), 0o755))
	runtime.LockOSThread() // execve keeps the restrictions of this thread
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err == nil {
		err = restrict(append(cfg.fileRules(config), fileRule{own, runFile}))
	}
	if err != nil {
		return fmt.Errorf("confine boxd: %w", err)
	}
	if err := unix.Exec(own, os.Args, append(os.Environ(), confinedVariable+"=1")); err != nil {
		return fmt.Errorf("execute %s: %w", own, err)
	}
	return nil
}

// ownDirs are the directories below the state directory that boxd writes to; the rest is the keeper's. A part of boxd that needs another
// one does not start without it being listed here.
var ownDirs = []string{statedir.Daemon, "audit", statedir.DriveStore, "images", "named-workspaces", "sessions", statedir.SkillStore, "usage"}

// ownFiles are those of statedir.Daemon. Before boxd 0.2 they were in the state directory itself.
var ownFiles = []string{"drained.json", "grants.json", "langbot-admission", "langbot-skills-taken", "previews.json", "secrets.json"}

// makeOwnDirs makes boxd's directories in the state directory, and moves to them what an earlier boxd has left in the state directory itself. A
// file at its earlier place is newer than one at its place: then an earlier boxd has run meanwhile.
func makeOwnDirs(state string) error {
	dir, err := os.OpenRoot(state)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, name := range ownDirs {
		if err := dir.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for _, name := range ownFiles {
		if err := move(dir, name, path.Join(statedir.Daemon, name)); err != nil {
			return fmt.Errorf("move a record of an earlier boxd: %w", err)
		}
	}
	return nil
}

// move renames a file, if it exists, or a directory. The entries of a directory are added to those of one that is there.
func move(dir *os.Root, from, to string) error {
	err := dir.Rename(from, to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return err
	}
	entries, err := fs.ReadDir(dir.FS(), from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := dir.Rename(path.Join(from, e.Name()), path.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return dir.Remove(from)
}

// fileRules are the files that a boxd with this configuration may open if it is confined.
func (c *Config) fileRules(config string) []fileRule {
	state := c.Daemon.StateDir
	rules := []fileRule{
		{state, listFiles}, // of the workspaces it reads the names
		{filepath.Join(state, "lock"), useFile},
		{c.Daemon.RuntimeDir, writeFiles},
		{filepath.Dir(c.Daemon.Socket), writeFiles},
		{"/usr", readFiles},
		{"/etc", readFiles},                     // users and groups: their files are replaced by others
		{"/var/lib/ca-certificates", readFiles}, // where /etc/ssl leads to on openSUSE
		{"/proc", readFiles},
		{"/sys", readFiles},
		{os.DevNull, useFile},
		{"/dev/kmsg", readFiles},
	}
	for _, name := range ownDirs {
		rules = append(rules, fileRule{filepath.Join(state, name), writeFiles})
	}
	dropIn := dropInDirs(config)
	found, _ := dropIns(dropIn) // the configuration has been read
	for _, dir := range slices.Concat(dropIn, dirsOf(append(found, config)), c.readable()) {
		rules = append(rules, fileRule{dir, readFiles})
	}
	return rules
}

// readable returns the directories of all files that the configuration names.
func (c *Config) readable() []string {
	files := []string{access.Credentials(), c.Access.Tokens, c.Daemon.Certificate, c.Daemon.PrivateKey, c.Daemon.ClientCA, c.Daemon.ClientCRL, c.LangBot.TokenFile, c.E2B.Certificate, c.E2B.Key, c.Traces.HeadersFile, c.Traces.CA}
	for _, s := range c.Secrets {
		files = append(files, s.File, s.Authorities)
	}
	for _, b := range c.Buckets {
		files = append(files, b.File)
	}
	return dirsOf(slices.DeleteFunc(files, func(file string) bool { return file == "" }))
}

// dirsOf returns the directories of files, and of what they lead to if they are links: certificates are renewed by a new file in the directory
// of the old one.
func dirsOf(files []string) (dirs []string) {
	for _, file := range files {
		dirs = append(dirs, filepath.Dir(file))
		if to, err := filepath.EvalSymlinks(file); err == nil {
			dirs = append(dirs, filepath.Dir(to))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// elsewhere returns the directories of configured files that a boxd which was confined with the configuration started may not read.
func (c *Config) elsewhere(started *Config) []string {
	if !started.Confined {
		return nil
	}
	allowed := append(started.readable(), "/etc", "/usr")
	return slices.DeleteFunc(c.readable(), func(dir string) bool {
		return slices.ContainsFunc(allowed, func(in string) bool { return dir == in || strings.HasPrefix(dir, in+"/") })
	})
}

// checkConfined reports what keeps a boxd that is taken over from files of the host.
func checkConfined() isolation.Check {
	c := isolation.Check{Name: "files of boxd", Detail: "boxd opens its own files, those that its configuration names, and /etc, /usr, /proc and /sys (Landlock)"}
	if !canRestrictFiles() {
		c.Level, c.Detail = isolation.CheckWarn, "boxd is root, and nothing but AppArmor, if that is enabled, keeps it from other files of the host"
		c.Hint = "boot a kernel from Linux 5.19 on with Landlock among its security modules (lsm=)"
	}
	return c
}
