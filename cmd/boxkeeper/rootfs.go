// SPDX-License-Identifier: Apache-2.0

// Mount trees: what every box of an image starts with.

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// hostRoot describes the image "host": the host's own programs, and as little else as they need
// to run.
type hostRoot struct {
	// Etc lists what boxes see of the host's /etc, read-only: paths below it, where * matches
	// within a name. Directories are bind-mounted, files copied, symbolic links kept. Missing
	// entries are no error. packagesEntry stands for what packages have installed, and !PATH takes a
	// path out.
	Etc []string
	// Files is a descriptor of the program that serves files in boxes, which becomes
	// isolation.FilesProgram there.
	Files int
}

// treeSize bounds the tmpfs of the tree. It holds a few links and small files; boxes cannot write
// to it.
const treeSize = "16m"

// staging is where the tree is attached while it is built. It exists on every Linux host, and the
// mount namespace is ours alone.
const staging = "/proc"

// rootBuilder makes one tree. It uses descriptors throughout, so that no path of the host is resolved in the half-built tree, and
// no path of the tree on the host.
type rootBuilder struct {
	root int // the new tree
	host int // the host's /
}

// enterRoot makes the tree and makes it the root of the calling thread's mount namespace, which
// must be private. The namespaces of boxes are copies of it; what is mounted here is locked there
// (mount_namespaces(7)), so it stays read-only even for root in a box.
func enterRoot(img hostRoot) error {
	b, err := beginRoot()
	if err != nil {
		return err
	}
	defer b.close()
	for _, part := range []func() error{
		func() error { return b.directories("usr", "root") }, b.programs, b.devices, func() error { return b.etc(img.Etc) }, func() error { return b.filesProgram(img.Files) }, func() error { return b.showProgram(b.root) },
		func() error { return attachProc(b.root) },
	} {
		if err := part(); err != nil {
			return err
		}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(b.root, "", unix.AT_EMPTY_PATH, &attr); err != nil { // without AT_RECURSIVE: this mount only
		return fmt.Errorf("make the tree read-only: %w", err)
	}
	return changeRoot(b.root)
}

// directories makes the directories that every box has, and others at the top.
func (b *rootBuilder) directories(others ...string) error {
	dirs := slices.Concat(isolation.RootDirs(), []string{"dev/pts", "dev/shm", isolation.SkillsDir[1:], isolation.DrivesDir[1:]}, others)
	for _, r := range isolation.Roots() {
		dirs = append(dirs, r[1:])
	}
	for _, d := range dirs {
		if err := unix.Mkdirat(b.root, d, 0o755); err != nil {
			return fmt.Errorf("directory /%s: %w", d, err)
		}
	}
	return b.links(map[string]string{
		"dev/fd": "/proc/self/fd", "dev/stdin": "/proc/self/fd/0", "dev/stdout": "/proc/self/fd/1",
		"dev/stderr": "/proc/self/fd/2", "dev/ptmx": "pts/ptmx",
	})
}

func (b *rootBuilder) links(links map[string]string) error {
	for name, target := range links {
		if err := unix.Symlinkat(target, b.root, name); err != nil {
			return fmt.Errorf("link /%s: %w", name, err)
		}
	}
	return nil
}

// programs shows /usr, and those of /bin, /lib and so on that are not symbolic links into it.
func (b *rootBuilder) programs() error {
	trees := isolation.HostDirs()
	if err := b.bind(trees[0]); err != nil {
		return err
	}
	for _, name := range trees[1:] {
		if err := b.show(name); err != nil {
			return err
		}
	}
	return nil
}

// show puts one entry of the host into the tree: a directory is bind-mounted, a symbolic link
// kept, a file copied. What does not exist is left out, and so are its parent directories.
func (b *rootBuilder) show(name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(b.host, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("host's /%s: %w", name, err)
	}
	if err := b.parents(name); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err := unix.Mkdirat(b.root, name, 0o755); err != nil {
			return fmt.Errorf("directory /%s: %w", name, err)
		}
		return b.bind(name)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(b.host, name, buf)
		if err != nil {
			return fmt.Errorf("host's /%s: %w", name, err)
		}
		return b.links(map[string]string{name: string(buf[:n])})
	case unix.S_IFREG:
		return b.copyFile(name)
	}
	return nil // sockets and devices are not shared
}

// bind mounts a directory of the host read-only, with all mounts below it.
func (b *rootBuilder) bind(name string) error {
	src, err := linux.OpenBeneath(b.host, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("host's /%s: %w", name, err)
	}
	defer unix.Close(src)
	tree, err := linux.CloneMount(src, "", true)
	if err != nil {
		return fmt.Errorf("clone /%s: %w", name, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE, // otherwise a mount made in a box would show up on the host
	}
	if err := linux.RestrictMount(tree, &attr); err != nil {
		return fmt.Errorf("restrict /%s: %w", name, err)
	}
	if err := linux.AttachMount(tree, b.root, name); err != nil {
		return fmt.Errorf("attach /%s: %w", name, err)
	}
	return nil
}

// maxCopy bounds a copied file of /etc, in bytes; ld.so.cache of a large host has some 200 KiB.
const maxCopy = 4 << 20

func (b *rootBuilder) copyFile(name string) error {
	// O_NONBLOCK: opening it does not block, even if it has been replaced by a FIFO since it was
	// examined.
	fd, err := linux.OpenBeneath(b.host, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return fmt.Errorf("host's /%s: %w", name, err)
	}
	src := os.NewFile(uintptr(fd), name)
	defer src.Close()
	data, err := io.ReadAll(io.LimitReader(src, maxCopy))
	if err != nil {
		return fmt.Errorf("read /%s: %w", name, err)
	}
	return b.write(name, data)
}

func (b *rootBuilder) write(name string, data []byte) error {
	fd, err := unix.Openat(b.root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("file /%s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// devices makes the few harmless device nodes. On a host that may not make nodes, being a
// container itself, it bind-mounts the host's.
func (b *rootBuilder) devices() error {
	for _, d := range []struct {
		name         string
		major, minor uint32
	}{
		{"dev/null", 1, 3}, {"dev/zero", 1, 5}, {"dev/full", 1, 7}, {"dev/random", 1, 8}, {"dev/urandom", 1, 9}, {"dev/tty", 5, 0},
	} {
		err := unix.Mknodat(b.root, d.name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor)))
		if errors.Is(err, unix.EPERM) {
			err = b.bindFile(d.name)
		}
		if err != nil {
			return fmt.Errorf("device /%s: %w", d.name, err)
		}
	}
	return nil
}

// filesProgram copies the program that serves files, so that nothing a box might do to it affects the host's file. The box user
// may execute it but not read it: so the kernel lets no process in the box trace it or read its memory, from its first
// instruction on (execve(2), ptrace(2)).
func (b *rootBuilder) filesProgram(program int) error {
	name := isolation.FilesProgram[1:]
	if err := b.parents(name); err != nil {
		return err
	}
	to, err := unix.Openat(b.root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o711)
	if err != nil {
		return fmt.Errorf("file /%s: %w", name, err)
	}
	from := int64(0) // an offset of our own, as the descriptor's is shared with others
	for n := 1; n > 0 && err == nil; {
		n, err = unix.Sendfile(to, program, &from, 1<<20)
	}
	unix.Close(to) // a file that is open for writing cannot be executed
	if err != nil {
		return fmt.Errorf("copy /%s: %w", name, err)
	}
	return nil
}

// showProgram bind-mounts the copy on itself in a tree, as the tree itself is noexec.
func (b *rootBuilder) showProgram(target int) error {
	name := isolation.FilesProgram[1:]
	tree, err := linux.CloneMount(b.root, name, false)
	if err != nil {
		return fmt.Errorf("clone /%s: %w", name, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := linux.RestrictMount(tree, &attr); err != nil {
		return fmt.Errorf("restrict /%s: %w", name, err)
	}
	return linux.AttachMount(tree, target, name)
}

func (b *rootBuilder) bindFile(name string) error {
	if err := b.write(name, nil); err != nil {
		return err
	}
	tree, err := linux.CloneMount(b.host, name, false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return linux.AttachMount(tree, b.root, name)
}

// etc makes the synthetic /etc and adds the listed parts of the host's.
func (b *rootBuilder) etc(show []string) error {
	files := map[string]string{
		"passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n" +
			"box:x:1000:1000:box:" + isolation.Home + ":/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         "root:x:0:\ntty:x:5:\nbox:x:1000:root\nnogroup:x:65534:\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"shells":        "/bin/sh\n/bin/bash\n",
		// A repository mounted from the host belongs to a user of the host, whom git would not
		// trust (git-config(1)). Whatever its configuration makes git run is run in the box.
		gitConfig: "[safe]\n\tdirectory = *\n",
	}
	listed, err := b.listed(show)
	if err != nil {
		return err
	}
	if slices.Contains(listed, "etc/"+gitConfig) { // the operator wants the host's file instead
		delete(files, gitConfig)
	}
	for name, text := range files {
		if err := b.write("etc/"+name, []byte(text)); err != nil {
			return err
		}
	}
	if err := b.rootLinks(map[string]string{"etc/os-release": "../usr/lib/os-release"}); err != nil {
		return err
	}
	for _, name := range listed {
		if err := b.show(name); err != nil {
			return err
		}
	}
	return nil
}

// gitConfig is git's system-wide configuration, below /etc.
const gitConfig = "gitconfig"

// listed returns the paths below / that patterns match, each once; a path inside a directory that
// is listed too is left out.
func (b *rootBuilder) listed(show []string) ([]string, error) {
	var all, without []string
	for _, pattern := range show {
		if pattern == packagesEntry {
			found, err := b.unchanged()
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
			continue
		}
		pattern, not := strings.CutPrefix(pattern, "!")
		found, err := b.match(pattern)
		switch {
		case err != nil:
			return nil, err
		case not:
			without = append(without, found...)
		default:
			all = append(all, found...)
		}
	}
	all = slices.DeleteFunc(all, func(name string) bool {
		return slices.ContainsFunc(without, func(w string) bool { return name == w || strings.HasPrefix(name, w+"/") })
	})
	slices.Sort(all)
	all = slices.Compact(all)
	named := map[string]bool{}
	for _, name := range all {
		named[name] = true
	}
	return slices.DeleteFunc(all, func(name string) bool {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if named[dir] && b.isDir(dir) {
				return true
			}
		}
		return false
	}), nil
}

// isDir reports whether a path of the host is a directory, and not a symbolic link to one.
func (b *rootBuilder) isDir(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(b.host, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// rootLinks makes the symbolic links that every box has, whatever its image.
func (b *rootBuilder) rootLinks(others map[string]string) error {
	links := isolation.RootLinks()
	maps.Copy(links, others)
	return b.links(links)
}

// match returns the paths below / that a pattern of Etc matches.
func (b *rootBuilder) match(pattern string) ([]string, error) {
	if !isolation.CleanAbsolute("/" + pattern) {
		return nil, fmt.Errorf("image etc %q: not a clean path below /etc", pattern)
	}
	found := []string{"etc"}
	for part := range strings.SplitSeq(pattern, "/") {
		var next []string
		for _, dir := range found {
			if !strings.Contains(part, "*") {
				next = append(next, dir+"/"+part)
				continue
			}
			entries, err := b.entries(dir)
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				if ok, err := path.Match(part, e); err != nil {
					return nil, fmt.Errorf("image etc %q: %w", pattern, err)
				} else if ok {
					next = append(next, dir+"/"+e)
				}
			}
		}
		found = next
	}
	return found, nil
}

// entries returns the names in a directory of the host, none if there is no such directory.
func (b *rootBuilder) entries(name string) ([]string, error) {
	fd, err := unix.Openat(b.host, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("host's /%s: %w", name, err)
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	entries, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("host's /%s: %w", name, err)
	}
	return entries, nil
}

func (b *rootBuilder) parents(name string) error {
	for i := range name {
		if name[i] != '/' {
			continue
		}
		if err := unix.Mkdirat(b.root, name[:i], 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("directory /%s: %w", name[:i], err)
		}
	}
	return nil
}

// attachProc mounts a procfs that each box covers with its own. It is needed for two reasons: the
// Go runtime writes /proc/<pid>/uid_map of a new box by path, and the kernel lets a user
// namespace mount a procfs only where one is fully visible. hidepid=ptraceable leaves nothing of
// the host in it that root in a box could see.
func attachProc(root int) error {
	m, err := linux.NewMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, "hidepid", "ptraceable")
	if err != nil {
		return fmt.Errorf("procfs: %w", err)
	}
	defer unix.Close(m)
	if err := linux.AttachMount(m, root, "proc"); err != nil {
		return fmt.Errorf("attach /proc: %w", err)
	}
	return nil
}
