// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// An export is a tar archive: definitionEntry first, then the archives of all paths of the definition, the entries of the second one
// below "1/", and endEntry last, without which it is cut off.
const (
	definitionEntry = "definition.json"
	endEntry        = "end"
	exportFormat    = 1
	maxDefinition   = 64 << 20 // bytes
)

// unreadable ends the comment of an archive on an entry that the user of the box cannot read.
const unreadable = ": may not be read"

// exported is the content of definitionEntry.
type exported struct {
	Format     int                   `json:"format"`
	Definition api.SessionDefinition `json:"definition"`
}

func (a *app) exportCommand() *cobra.Command {
	var file string
	var leave bool
	cmd := &cobra.Command{
		Use: "export [flags] BOX", Short: "Export a box with its files as a tar archive", Args: usage(cobra.ExactArgs(1)),
		Long: `export writes an archive from which boxctl import makes the same box again, on this host or another.
It has the settings and environment of the box, its workspace, its home directory if that is on
disk, and the processes whose restart policy is always. As it has the values of the environment, a
file of --output can be read by its owner only.

Stop the box first (boxctl stop), or its programs can change files while they are read. Changes to
the root filesystem, snapshots, sockets and FIFOs are left out, which export says. The archive names
host directories, workspaces, skills, drives, images and secrets; their content is not part of it.`,
		Example: `  boxctl stop build
  boxctl export -o build.tar build
  boxctl export build | ssh web2 boxctl import`,
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if file == "" && render.IsTerminal(a.stdout) {
				return &usageError{err: errors.New("an archive is not for a terminal"), hint: "boxctl export -o FILE BOX"}
			}
			return a.into(file, func(w io.Writer) error { return a.export(cmd.Context(), c, args[0], leave, w) })
		}),
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`FILE` to write to, instead of standard output")
	cmd.Flags().BoolVar(&leave, "leave-out", false, "leave out files that cannot be read")
	a.addQuiet(cmd, "show no progress")
	return cmd
}

// into calls write with a file that appears under its name when it is complete, or with standard output.
func (a *app) into(file string, write func(io.Writer) error) error {
	if file == "" {
		return write(a.stdout)
	}
	dir, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(file)
	part := ".boxctl-" + name
	_ = dir.Remove(part) // of one that was killed
	f, err := dir.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Remove(part) }() // it has the other name if it is complete
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return dir.Rename(part, name)
}

// export writes the archive of a box.
func (a *app) export(ctx context.Context, c *client.Client, id string, leave bool, w io.Writer) error {
	d, err := c.Definition(ctx, id)
	if err != nil {
		return err
	}
	for _, what := range d.LeftOut {
		a.say("boxctl", "left out: "+render.Printable(what))
	}
	text, err := json.Marshal(&exported{Format: exportFormat, Definition: d})
	if err != nil {
		return err
	}
	p := a.progress("received", 0)
	defer p.end()
	out := tar.NewWriter(w)
	if err := putEntry(out, definitionEntry, text); err != nil {
		return err
	}
	for i, path := range d.Paths {
		if err := a.exportPath(ctx, c, id, path, strconv.Itoa(i)+"/", leave, out, p); err != nil {
			return fmt.Errorf("%s: %w", render.Printable(path), err)
		}
	}
	if err := putEntry(out, endEntry, nil); err != nil {
		return err
	}
	return out.Close()
}

func putEntry(w *tar.Writer, name string, text []byte) error {
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o600})
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// exportPath writes the files of a directory of a box below a prefix.
func (a *app) exportPath(ctx context.Context, c *client.Client, id, path, prefix string, leave bool, out *tar.Writer, p *Progress) error {
	r, err := c.DownloadArchive(ctx, id, path, true)
	if err != nil {
		return err
	}
	defer r.Close()
	for in := tar.NewReader(io.TeeReader(r, p)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			what := h.PAXRecords["comment"]
			if strings.HasSuffix(what, unreadable) && !leave {
				return errors.New(render.Printable(strings.TrimPrefix(what, "left out: ")) + "; --leave-out exports the rest")
			}
			a.say("boxctl", render.Printable(what))
			continue
		}
		h.Format = tar.FormatPAX // longer names than before may need it
		h.Name = prefix + h.Name
		if h.Typeflag == tar.TypeLink {
			h.Linkname = prefix + h.Linkname
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

func (a *app) importCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use: "import [flags] [FILE]", Short: "Create a box from an archive of export, and start it", Args: usage(cobra.MaximumNArgs(1)),
		Long: `import makes the box that boxctl export has written, from a file or standard input, and prints its
name. It is a new box: the policy and limits of this host apply, and what the archive names must
exist here. If it cannot be made whole, nothing is left of it.

The box has what was left of its max_lifetime at the export.`,
		Example: `  boxctl import build.tar
  boxctl import --id build2 build.tar`,
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			source := "-"
			if len(args) > 0 {
				source = args[0]
			}
			r, done, err := a.source(source, false)
			if err != nil {
				return err
			}
			defer done()
			s, err := a.imports(cmd.Context(), c, id, r)
			return a.answer(s, err, func() error {
				fmt.Fprintln(a.stdout, render.Printable(s.ID))
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&id, "id", "", "`ID` of the new box; default the one it had")
	a.addQuiet(cmd, "show no progress")
	return cmd
}

// errNoExport says that a file is something else.
var errNoExport = &usageError{err: errors.New("this is no archive of boxctl export"), hint: "boxctl export -o FILE BOX makes one; boxctl images import FILE takes an image"}

// imports makes the box of an archive, or nothing.
func (a *app) imports(ctx context.Context, c *client.Client, id string, r io.Reader) (s api.Session, err error) {
	in := tar.NewReader(r)
	d, err := readDefinition(in)
	if err != nil {
		return s, err
	}
	var req api.SessionRequest
	if err := json.Unmarshal(d.Session, &req); err != nil {
		return s, errNoExport
	}
	if id != "" {
		req.ID = id
	}
	s, isNew, err := c.CreateSession(ctx, &req)
	if err != nil {
		return s, err
	}
	if !isNew {
		return s, fmt.Errorf("box %s exists already; name the new one with --id", render.Printable(req.ID))
	}
	a.showClamped(s.Clamped)
	for _, k := range s.Skills {
		if k.Missing {
			a.say("boxctl", "the skill "+render.Printable(k.Name)+" does not exist here")
		}
	}
	if err = sameImage(ctx, c, &s, d); err == nil {
		err = a.fill(ctx, c, s.ID, d, in)
	}
	if err != nil {
		return s, errors.Join(err, c.DeleteSession(context.WithoutCancel(ctx), s.ID))
	}
	return s, nil
}

// sameImage refuses a box whose image is another one than at its export.
func sameImage(ctx context.Context, c *client.Client, s *api.Session, d *api.SessionDefinition) error {
	is, err := c.Definition(ctx, s.ID)
	if err == nil && is.ImageDigest != d.ImageDigest {
		err = fmt.Errorf("image %s is another one here: %s and not %s", render.Printable(s.Image), orElse(is.ImageDigest, "none"), orElse(d.ImageDigest, "none"))
	}
	return err
}

// readDefinition reads the beginning of an export.
func readDefinition(in *tar.Reader) (*api.SessionDefinition, error) {
	h, err := in.Next()
	if err != nil || h.Name != definitionEntry || h.Size > maxDefinition {
		return nil, errNoExport
	}
	var is exported
	if err := json.NewDecoder(in).Decode(&is); err != nil {
		return nil, errNoExport
	}
	if is.Format != exportFormat {
		return nil, fmt.Errorf("the archive has the format %d, and this boxctl knows format %d: use a newer boxctl", is.Format, exportFormat)
	}
	return &is.Definition, nil
}

// fill gives a new box the files and processes of an export.
func (a *app) fill(ctx context.Context, c *client.Client, id string, d *api.SessionDefinition, in *tar.Reader) error {
	h, err := nextEntry(in)
	for i, path := range d.Paths {
		if err != nil {
			return err
		}
		if h, err = a.fillPath(ctx, c, id, path, strconv.Itoa(i)+"/", h, in); err != nil {
			err = fmt.Errorf("%s: %w", render.Printable(path), err)
		}
	}
	if err == nil && h.Name != endEntry {
		err = fmt.Errorf("the archive has an entry %s, which is of none of its directories", render.Printable(h.Name))
	}
	if err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(d.Processes)) {
		var req api.ProcessRequest
		if err := json.Unmarshal(d.Processes[p], &req); err != nil {
			return errNoExport
		}
		if _, _, err := c.StartProcess(ctx, id, p, &req); err != nil {
			return fmt.Errorf("process %s: %w", render.Printable(p), err)
		}
	}
	return nil
}

// nextEntry reads the next entry of an export, which has one more until its last.
func nextEntry(in *tar.Reader) (*tar.Header, error) {
	h, err := in.Next()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("the archive is cut off")
	}
	return h, err
}

// fillPath gives a box the files of one directory: h, and those that follow with the same prefix. It returns the next entry.
func (a *app) fillPath(ctx context.Context, c *client.Client, id, path, prefix string, h *tar.Header, in *tar.Reader) (*tar.Header, error) {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() { // ends with the pipe
		_, err := c.UploadArchive(ctx, id, client.Upload{Path: path, Overwrite: true, OutwardLinks: true}, r)
		r.CloseWithError(cmp.Or(err, errUnread))
		sent <- err
	}()
	out := tar.NewWriter(w)
	next, err := h, error(nil)
	for err == nil && strings.HasPrefix(next.Name, prefix) {
		is := *next
		is.Name = strings.TrimPrefix(is.Name, prefix)
		if is.Typeflag == tar.TypeLink {
			is.Linkname = strings.TrimPrefix(is.Linkname, prefix)
		}
		if err = out.WriteHeader(&is); err == nil {
			_, err = io.Copy(out, in)
		}
		if err == nil {
			next, err = nextEntry(in)
		}
	}
	if err == nil {
		err = out.Close()
	}
	w.CloseWithError(err)
	if refused := <-sent; refused != nil && (err == nil || errors.Is(err, refused)) {
		return nil, refused
	}
	return next, err
}
