// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/isolation/files/layers"
	"github.com/boxd-dev/boxd/isolation/files/ops"
	"github.com/boxd-dev/boxd/isolation/files/search"
)

// Main serves one request and returns the exit status: 0 if it has been answered, even with a
// Failure.
func Main(in io.Reader, out io.Writer) int {
	// Other programs of the box run as the same user. The kernel makes this process non-dumpable
	// from its first instruction on, since nobody in a box may read the program (execve(2)); this
	// is for a kernel where that has been changed.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	unix.Umask(0o022)
	from, to := bufio.NewReaderSize(in, 64<<10), bufio.NewWriterSize(out, 64<<10)
	w := files.NewWriter(to)
	req, err := files.ReadRequest(from)
	a := &files.Answer{}
	if err != nil {
		a.Failure = &files.Failure{Kind: files.BadRequest, Text: "no request: " + err.Error()}
	} else if err := answer(req, files.NewReader(from), w, a); err != nil {
		*a = files.Answer{Failure: ops.Fail(pathOf(req), err)}
	}
	if w.Answer(a) != nil || to.Flush() != nil {
		return 1
	}
	return 0
}

// answer carries out a request and fills in the field of its kind.
func answer(req *files.Request, body io.Reader, w io.Writer, a *files.Answer) (err error) {
	switch {
	case req.Read != nil:
		a.Read, err = ops.Read(req.Read, w)
	case req.Write != nil:
		a.Write, err = ops.Write(req.Write, body)
	case req.Edit != nil:
		a.Edit, err = ops.Edit(req.Edit)
	case req.Glob != nil:
		a.List, err = search.Glob(req.Glob)
	case req.Grep != nil:
		a.Grep, err = search.Grep(req.Grep)
	case req.List != nil:
		a.List, err = search.List(req.List)
	case req.Stat != nil:
		a.Stat, err = ops.Stat(req.Stat)
	case req.Move != nil:
		err = ops.Move(req.Move)
		a.Done = err == nil
	case req.Remove != nil:
		err = ops.Remove(req.Remove)
		a.Done = err == nil
	case req.Chmod != nil:
		err = ops.Chmod(req.Chmod)
		a.Done = err == nil
	case req.Prune != nil:
		err = ops.Prune(req.Prune)
		a.Done = err == nil
	case req.Pack != nil:
		a.Archive, err = ops.Pack(req.Pack, w)
	case req.Unpack != nil:
		a.Archive, err = ops.Unpack(req.Unpack, body)
	case req.Snapshot != nil:
		a.Snapshot, err = search.Snapshot(req.Snapshot, w)
	case req.Changes != nil:
		a.Changes, err = search.Changes(req.Changes, body)
	case req.Diff != nil:
		a.Changes, err = search.Diff(req.Diff)
	case req.Sweep != nil:
		err = ops.Sweep(req.Sweep)
		a.Done = err == nil
	case req.Commit != nil:
		a.Archive, err = layers.Pack(req.Commit, w)
	case req.Discard != nil:
		a.Discarded, err = layers.Discard(req.Discard)
	default:
		err = &files.Failure{Kind: files.BadRequest, Text: "this boxfiles does not know what is asked for", Hint: "it is as old as the box: make a new one"}
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
