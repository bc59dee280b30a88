// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// Main serves one request and returns the exit status: 0 if it has been answered, even with a
// Failure.
func Main(in io.Reader, out io.Writer) int {
	// Other programs of the box run as the same user. The kernel makes this process non-dumpable from its first instruction on,
	// since no user in a box may read the program (execve(2)); this is for a kernel where that has been changed.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	unix.Umask(0o022)
	from, to := bufio.NewReaderSize(in, 64<<10), bufio.NewWriterSize(out, 64<<10)
	w := files.NewWriter(to)
	req, err := files.ReadRequest(from)
	a := &files.Answer{}
	if err != nil {
		a.Failure = &files.Failure{Kind: files.BadRequest, Text: "no request: " + err.Error()}
	} else if err := answer(req, files.NewReader(from), &answerWriter{w, to}, a); err != nil {
		*a = files.Answer{Failure: failureOf(pathOf(req), err)}
	}
	if w.Answer(a) != nil || to.Flush() != nil {
		return 1
	}
	return 0
}

// answerWriter writes what comes before an answer.
type answerWriter struct {
	*files.Writer
	to *bufio.Writer
}

// notify writes a notice and flushes it: the client waits for it.
func (o *answerWriter) notify(n *files.Notice) error {
	if err := o.Notice(n); err != nil {
		return err
	}
	return o.to.Flush()
}

// answer carries out a request and fills in the field of its kind.
func answer(req *files.Request, body io.Reader, w *answerWriter, a *files.Answer) (err error) {
	done := func(err error) error {
		a.Done = err == nil
		return err
	}
	switch {
	case req.Read != nil:
		a.Read, err = readFile(req.Read, w)
	case req.Write != nil:
		a.Write, err = writeFile(req.Write, body)
	case req.Edit != nil:
		a.Edit, err = editFile(req.Edit)
	case req.Glob != nil:
		a.List, err = globFiles(req.Glob)
	case req.Grep != nil:
		a.Grep, err = grepFiles(req.Grep)
	case req.List != nil:
		a.List, err = listDir(req.List)
	case req.Stat != nil:
		a.Stat, err = statFile(req.Stat)
	case req.Move != nil:
		err = done(movePath(req.Move))
	case req.Remove != nil:
		err = done(removePath(req.Remove))
	case req.Chmod != nil:
		err = done(chmodPath(req.Chmod))
	case req.Mkdir != nil:
		a.Write, err = makeDir(req.Mkdir)
	case req.Get != nil:
		err = done(getFile(req.Get, w.notify, w))
	case req.Put != nil:
		a.Write, err = putFile(req.Put, body)
	case req.Watch != nil:
		err = done(watchDir(req.Watch, w.notify))
	case req.Prune != nil:
		err = done(pruneDir(req.Prune))
	case req.Sweep != nil:
		err = done(sweepDir(req.Sweep))
	default:
		err = answerTree(req, body, w, a)
	}
	return err
}

// answerTree does the same for whole trees.
func answerTree(req *files.Request, body io.Reader, w io.Writer, a *files.Answer) (err error) {
	switch {
	case req.Pack != nil:
		a.Archive, err = packTree(req.Pack, w)
	case req.Unpack != nil:
		a.Archive, err = unpackTree(req.Unpack, body)
	case req.Snapshot != nil:
		a.Snapshot, err = takeSnapshot(req.Snapshot, w)
	case req.Changes != nil:
		a.Changes, err = changesSince(req.Changes, body)
	case req.Diff != nil:
		a.Changes, err = diffOverlay(req.Diff)
	case req.Commit != nil:
		a.Archive, err = packCommit(req.Commit, w)
	case req.Discard != nil:
		a.Discarded, err = discardChanges(req.Discard)
	default:
		err = &files.Failure{Kind: files.BadRequest, Text: "this boxfiles does not know the request", Hint: "the box is too old: create a new one"}
	}
	return err
}

// pathOf returns the path that a request is about.
func pathOf(req *files.Request) string {
	switch {
	case req.Read != nil:
		return string(req.Read.Path)
	case req.Write != nil:
		return string(req.Write.Path)
	case req.Edit != nil:
		return string(req.Edit.Path)
	case req.Glob != nil:
		return string(req.Glob.Path)
	case req.Grep != nil:
		return string(req.Grep.Path)
	case req.List != nil:
		return string(req.List.Path)
	case req.Stat != nil:
		return string(req.Stat.Path)
	case req.Move != nil:
		return string(req.Move.From)
	case req.Remove != nil:
		return string(req.Remove.Path)
	case req.Chmod != nil:
		return string(req.Chmod.Path)
	case req.Mkdir != nil:
		return string(req.Mkdir.Path)
	case req.Get != nil:
		return string(req.Get.Path)
	case req.Put != nil:
		return string(req.Put.Path)
	case req.Watch != nil:
		return string(req.Watch.Path)
	case req.Prune != nil:
		return string(req.Prune.Path)
	case req.Pack != nil:
		return string(req.Pack.Path)
	case req.Unpack != nil:
		return string(req.Unpack.Path)
	case req.Snapshot != nil:
		return string(req.Snapshot.Path)
	case req.Changes != nil:
		return string(req.Changes.Path)
	case req.Diff != nil:
		return string(req.Diff.Changed)
	case req.Sweep != nil:
		return string(req.Sweep.Path)
	case req.Commit != nil:
		return string(req.Commit.Changed)
	case req.Discard != nil:
		return string(req.Discard.Root)
	}
	return ""
}
