// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// stagePrefix begins the names of stages and of other incomplete files; markFile and contentDir are names in a stage.
const (
	stagePrefix     = ".boxd-"
	temporaryLength = 26 // of what rand.Text returns, after the prefix
	markFile        = "unfinished"
	contentDir      = "content"
)

// stage is a directory beside the one that an archive will change, where the archive is unpacked first. Its mark file names that
// directory, by name and inode, and is locked while the process that made it lives. So a later process can tell which stages are
// left over, and does not mistake a copy of one, or a user's file, for one.
type stage struct {
	in      *os.Root // its parent directory
	name    string   // its name there
	dir     *os.Root // the stage itself
	content *os.Root // the unpacked archive
	mark    *os.File
}

// isTemporary reports whether a name is one that boxfiles gives to incomplete files: a stage, or a file that will replace
// another.
func isTemporary(name string) bool {
	rest, ok := strings.CutPrefix(name, stagePrefix)
	return ok && len(rest) == temporaryLength
}

// newStage makes a stage, and removes those that others have left behind. Until its mark is locked another process may sweep it:
// then it makes another.
func newStage(in *os.Root) (s *stage, err error) {
	sweepStages(in)
	for range 100 {
		s = &stage{in: in, name: stagePrefix + rand.Text()}
		if err := in.Mkdir(s.name, 0o700); err != nil {
			return nil, err // ENOENT: the directory that it would be in has been removed
		}
		if err = s.fill(); err == nil {
			return s, nil
		}
		s.end()
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
	}
	return nil, err
}

// fill opens the directory, and makes and locks what is in it.
func (s *stage) fill() (err error) {
	if s.dir, err = s.in.OpenRoot(s.name); err != nil {
		return err
	}
	if s.mark, err = s.dir.OpenFile(markFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	err = unix.Flock(int(s.mark.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) { // with any other error nothing can be locked here, and so nothing is swept
		return err
	}
	text, err := markText(s.dir, s.name)
	if err != nil {
		return err
	}
	if _, err = s.mark.WriteString(text); err != nil {
		return err
	}
	if err = s.dir.Mkdir(contentDir, 0o755); err != nil {
		return err
	}
	s.content, err = s.dir.OpenRoot(contentDir)
	return err
}

// markText returns the content of the mark file of a directory.
func markText(dir *os.Root, name string) (string, error) {
	at, err := dir.Open(".")
	if err != nil {
		return "", err
	}
	defer at.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("boxd: an archive that is being unpacked, in %s, inode %d\n", name, st.Ino), nil
}

// keep makes sure that the stage is not treated as left over: the user's files will be moved into it.
func (s *stage) keep() error { return s.dir.Remove(markFile) }

// end removes the stage, with everything that has not been moved. Whenever it is killed, sweepOne takes what is left.
func (s *stage) end() {
	if s.content != nil {
		s.content.Close()
	}
	if s.dir != nil {
		if s.dir.RemoveAll(contentDir) == nil {
			_ = s.dir.Remove(markFile)
		}
		s.dir.Close()
	}
	removeEmpty(s.in, s.name)
	if s.mark != nil {
		s.mark.Close() // last, as it releases the lock
	}
}

// maxSweep bounds how many names are searched for left-over stages.
const maxSweep = 100_000

// sweepDir removes stages that an Unpack has left behind because it was killed.
func sweepDir(req *files.Sweep) error {
	path, err := checkPath(req.Path)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if errors.Is(err, unix.ENOENT) {
		root, err = os.OpenRoot(parentOf(path))
	}
	if err != nil {
		return err
	}
	defer root.Close()
	sweepStages(root)
	return nil
}

// sweepStages removes stages that no process is using. What cannot be removed stays for the next sweep.
func sweepStages(in *os.Root) {
	dir, err := in.Open(".")
	if err != nil {
		return
	}
	defer dir.Close()
	for seen := 0; seen < maxSweep; {
		names, err := dir.Readdirnames(1024)
		seen += len(names)
		for _, name := range names {
			if isTemporary(name) {
				sweepOne(in, name)
			}
		}
		if err != nil {
			return
		}
	}
}

// sweepOne removes a stage that no process is using. Its maker may have been killed before it wrote the mark, or after it
// removed it: then the mark has a beginning of its text, or the directory is empty.
func sweepOne(in *os.Root, name string) {
	dir, err := in.OpenRoot(name)
	if err != nil {
		return
	}
	defer dir.Close()
	mark, err := dir.OpenFile(markFile, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		removeEmpty(in, name)
	}
	if err != nil {
		return
	}
	defer mark.Close()
	want, err := markText(dir, name)
	if err != nil || unix.Flock(int(mark.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	content, err := io.ReadAll(io.LimitReader(mark, int64(len(want))+1))
	if err != nil || !strings.HasPrefix(want, string(content)) {
		return
	}
	if string(content) == want {
		err = dir.RemoveAll(contentDir)
	} else if _, err = dir.Lstat(contentDir); !errors.Is(err, unix.ENOENT) { // it is made after the mark
		return
	}
	// Through the open directory, whatever has its name by now; the mark file goes last.
	if (err == nil || errors.Is(err, unix.ENOENT)) && dir.Remove(markFile) == nil {
		removeEmpty(in, name)
	}
}

// removeEmpty removes a directory, if it is one and empty.
func removeEmpty(in *os.Root, name string) {
	dir, err := in.Open(".")
	if err != nil {
		return
	}
	defer dir.Close()
	_ = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
}
