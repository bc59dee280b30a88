// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// cat prints whole files unchanged.
func (f fileCommands) cat() *cobra.Command {
	return &cobra.Command{
		Use:   "cat BOX PATH...",
		Short: "Print files of a box",
		Long:  "cat prints files of a box unchanged, text or binary, of any size.",
		Args:  usage(cobra.MinimumNArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			for _, p := range args[1:] {
				if err := f.print(cmd.Context(), c, args[0], p); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

func (f fileCommands) print(ctx context.Context, c *client.Client, session, p string) error {
	file, err := c.OpenFile(ctx, session, p, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(f.stdout, file)
	return err
}

// place is a local path, or a path in a session.
type place struct{ session, path string }

// placeOf tells them apart: a local path begins with / or ., or has no colon.
func placeOf(arg string) place {
	if strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") {
		return place{path: arg}
	}
	if i := strings.LastIndex(arg, ":/"); i > 0 {
		return place{arg[:i], arg[i+1:]}
	}
	if session, p, ok := strings.Cut(arg, ":"); ok && session != "" {
		if p == "" {
			p = "/workspace"
		}
		return place{session, p}
	}
	return place{path: arg}
}

func (f fileCommands) copy() *cobra.Command {
	var overwrite, links bool
	cmd := &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files between this host and a box",
		Long: `cp copies a file or directory from this host into a box, or back. The path in the box is written
BOX:PATH, and starts at /workspace unless it begins with /. If the target is a directory, the copy
is created in it, under its own name. Write a local path that contains a colon with ./ in front.

Either everything is copied or nothing. Special files and unreadable files are skipped and listed at
the end. So are symbolic links that point outside the directory when you copy out of a box, unless
--outward-links is given. Files copied out of a box get permissions according to your umask.`,
		Example: `  boxctl cp project work:           into /workspace/project
  boxctl cp work:project/report.pdf .`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			from, to := placeOf(args[0]), placeOf(args[1])
			switch {
			case (from.session == "") == (to.session == ""):
				return &usageError{err: errors.New("give one path on this host, and one in a box as BOX:PATH")}
			case to.session != "":
				return f.upload(cmd.Context(), c, from.path, to, overwrite, links || !cmd.Flags().Changed("outward-links"))
			}
			return f.download(cmd.Context(), c, from, to.path, overwrite, links)
		}),
	}
	f.addQuiet(cmd, "show no progress")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace existing files")
	cmd.Flags().BoolVar(&links, "outward-links", false, "also copy symbolic links that point outside the directory")
	return cmd
}

// noBounds is for archives that boxd limits, or that boxctl makes itself.
func noBounds() archive.Bounds {
	return archive.Bounds{Bytes: math.MaxInt64, Entries: math.MaxInt, File: math.MaxInt64}
}

// upload copies into a session. The archive has one top-level entry, with its name in the session.
func (f fileCommands) upload(ctx context.Context, c *client.Client, from string, to place, overwrite, links bool) error {
	source, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	dir, base := to.path, filepath.Base(source)
	if file, err := c.StatFile(ctx, to.session, &api.FileStat{Path: to.path}); err == nil && file.Type != "directory" || missing(err) && !strings.HasSuffix(to.path, "/") {
		dir, base = path.Split(to.path)
	} else if err != nil && !missing(err) {
		return err
	}
	if dir == "" {
		dir = "/workspace"
	}
	r, w := io.Pipe()
	stop := make(chan struct{})
	var stats archive.Stats
	go func() { // ends with the upload, which closes r
		defer close(stop)
		var err error
		stats, err = pack(w, source, base, info)
		w.CloseWithError(err)
	}()
	p := f.progress("sent", f.sizeOf(source))
	_, err = c.UploadArchive(ctx, to.session, client.Upload{Path: dir, Overwrite: overwrite, OutwardLinks: links}, io.TeeReader(r, p))
	_ = r.Close() // cannot fail
	<-stop
	p.end()
	f.printLeftOut(stats.LeftOut, err)
	return err
}

// printLeftOut prints what has not been copied.
func (f fileCommands) printLeftOut(list []string, err error) {
	if err != nil {
		return
	}
	outward := false
	for _, text := range list {
		fmt.Fprintln(f.stderr, "boxctl: left out:", render.Printable(text))
		outward = outward || strings.Contains(text, "leads out of the directory")
	}
	if outward {
		fmt.Fprintln(f.stderr, "hint: --outward-links takes such links")
	}
}

func missing(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && e.File != nil && e.File.Kind == "not_found"
}

func pack(w io.Writer, source, base string, info fs.FileInfo) (stats archive.Stats, err error) {
	at := source
	if !info.IsDir() {
		at = filepath.Dir(source)
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return stats, err
	}
	defer root.Close()
	if info.IsDir() {
		return archive.PackDir(w, root, base, noBounds(), archive.PackRules{LeaveOut: true})
	}
	return archive.PackFile(w, root, filepath.Base(source), base, noBounds())
}

// download copies out of a session. The archive is untrusted: it is unpacked beside the target, by the rules for every
// archive, and then moved.
func (f fileCommands) download(ctx context.Context, c *client.Client, from place, to string, overwrite, links bool) error {
	file, err := c.StatFile(ctx, from.session, &api.FileStat{Path: from.path})
	if err != nil {
		return err
	}
	base := path.Base(path.Clean("/" + from.path))
	parent, name := filepath.Split(filepath.Clean(to))
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		parent, name = to, base
		if base == "/" {
			return &usageError{err: errors.New("cannot copy the root of a box; name a directory")}
		}
	}
	if parent == "" {
		parent = "."
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer root.Close()
	if info, err := root.Lstat(name); err == nil && (!overwrite || info.IsDir()) {
		return fmt.Errorf("%s exists: --overwrite replaces files, not directories", filepath.Join(parent, name))
	}
	archive, err := c.DownloadArchive(ctx, from.session, from.path, true)
	if err != nil {
		return err
	}
	defer archive.Close()
	total := int64(0)
	if file.Type != "directory" {
		total = file.Size
	}
	p := f.progress("received", total)
	skipped, err := unpack(root, name, file.Type == "directory", links, io.TeeReader(archive, p))
	p.end()
	f.printLeftOut(skipped, err)
	return err
}

// unpack unpacks an archive to a directory, or its only file to a file, of a name. The archive's file modes are subject
// to the user's umask.
func unpack(root *os.Root, name string, directory, links bool, content io.Reader) (skipped []string, err error) {
	stage := ".boxctl-" + name
	if err := root.Mkdir(stage, 0o700); err != nil {
		return nil, err
	}
	defer func() { _ = root.RemoveAll(stage) }() // what was moved is not in it any more
	in, err := root.OpenRoot(stage)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	mask := unix.Umask(0o077) // the umask can only be read by setting it
	unix.Umask(mask)
	umask := fs.FileMode(mask)
	stats, err := archive.Unpack(content, in, archive.Rules{
		Umask: umask, OutwardLinks: links, LeaveOut: true, Bounds: archive.Bounds{Bytes: math.MaxInt64, Entries: 10_000_000, File: math.MaxInt64},
	})
	if err != nil {
		return nil, err
	}
	if directory {
		if err := root.Chmod(stage, 0o755&^umask|0o700); err != nil {
			return nil, err
		}
		return stats.LeftOut, root.Rename(stage, name)
	}
	d, err := in.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(2)
	if err != nil {
		return nil, err
	}
	if len(names) != 1 {
		return nil, errors.New("boxd did not send exactly 1 file")
	}
	return stats.LeftOut, root.Rename(stage+"/"+names[0], name)
}
