// SPDX-License-Identifier: Apache-2.0

package ops

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

// stagePrefix begins the names of stages; markFile and contentDir are in one.
const (
	stagePrefix = ".boxd-"
	markFile    = "unfinished"
	contentDir  = "content"
)

// stage is a directory beside what an archive will change, where that is unpacked first. Its mark says which directory
// it is of, by name and inode, and is locked as long as whoever made it lives: so a later one knows what nobody needs
// any more, and takes no copy and nothing of a user's for it.
type stage struct {
	in      *os.Root // where it is
	name    string   // there
	dir     *os.Root // it
	content *os.Root // what comes of the archive
	mark    *os.File
}

// newStage makes one, and removes those that others have left.
func newStage(in *os.Root) (*stage, error) {
	sweep(in)
	s := &stage{in: in, name: stagePrefix + rand.Text()}
	err := in.Mkdir(s.name, 0o700)
	if err != nil {
		return nil, err
	}
	if s.dir, err = in.OpenRoot(s.name); err == nil {
		s.mark, err = s.dir.OpenFile(markFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err == nil {
		_ = unix.Flock(int(s.mark.Fd()), unix.LOCK_EX|unix.LOCK_NB) // nobody has it; what knows no locks is not swept either
		var text string
		if text, err = markText(s.dir, s.name); err == nil {
			_, err = s.mark.WriteString(text)
		}
	}
	if err == nil {
		err = s.dir.Mkdir(contentDir, 0o755)
	}
	if err == nil {
		s.content, err = s.dir.OpenRoot(contentDir)
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// markText is what the mark of a directory says.
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

// keep has nobody take it for something left behind: files of the user's come into it.
func (s *stage) keep() error { return s.dir.Remove(markFile) }

// end removes it, with what has not been moved.
func (s *stage) end() {
	if s.content != nil {
		s.content.Close()
	}
	if s.dir != nil {
		s.dir.Close()
	}
	_ = s.in.RemoveAll(s.name)
	if s.mark != nil {
		s.mark.Close() // last: the lock ends with it
	}
}

// maxSweep bounds the names that are looked at for what was left.
const maxSweep = 100_000

// Sweep removes what archives have left where they were to be unpacked: those that were killed.
func Sweep(req *files.Sweep) error {
	path, err := checkPath(req.Path)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if errors.Is(err, unix.ENOENT) {
		root, err = os.OpenRoot(parent(path))
	}
	if err != nil {
		return err
	}
	defer root.Close()
	sweep(root)
	return nil
}

// sweep removes stages that nobody works on. What cannot be removed stays for the next.
func sweep(in *os.Root) {
	dir, err := in.Open(".")
	if err != nil {
		return
	}
	defer dir.Close()
	for seen := 0; seen < maxSweep; {
		names, err := dir.Readdirnames(1024)
		seen += len(names)
		for _, name := range names {
			if rest, ok := strings.CutPrefix(name, stagePrefix); ok && len(rest) == len(rand.Text()) {
				sweepOne(in, name)
			}
		}
		if err != nil {
			return
		}
	}
}

func sweepOne(in *os.Root, name string) {
	dir, err := in.OpenRoot(name)
	if err != nil {
		return
	}
	defer dir.Close()
	mark, err := dir.OpenFile(markFile, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer mark.Close()
	want, err := markText(dir, name)
	if err != nil || unix.Flock(int(mark.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	if said, err := io.ReadAll(io.LimitReader(mark, int64(len(want))+1)); err != nil || string(said) != want {
		return
	}
	// In the directory that was looked at, whatever has its name by now; the mark goes last.
	if dir.RemoveAll(contentDir) == nil && dir.Remove(markFile) == nil {
		_ = in.Remove(name) // it is empty, or has something that is not ours
	}
}
