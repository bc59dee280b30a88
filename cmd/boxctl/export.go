// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (a *app) exportCommand() *cobra.Command {
	var file string
	var o client.ExportOptions
	cmd := &cobra.Command{
		Use: "export [flags] BOX", Short: "Export a box with its files as a tar archive", Args: usage(cobra.ExactArgs(1)),
		Long: `export writes an archive from which boxctl import makes the same box again, on this host or another.
It has the settings and environment of the box, its workspace, its home directory if that is on
disk, and the processes whose restart policy is always. As it has the values of the environment, a
file of --output can be read by its owner only.

Stop the box first (boxctl stop), or its programs can change files while they are read. Changes to
the root filesystem, snapshots, sockets and FIFOs are left out, which export says. The archive names
host directories, workspaces, skills, drives, images and secrets; their content is not part of it.
With --with-workspace it has that of the named workspace which the box uses, as the new box's own.`,
		Example: `  boxctl stop build
  boxctl export -o build.tar build
  boxctl export build | ssh web2 boxctl import`,
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if file == "" && render.IsTerminal(a.stdout) {
				return &usageError{err: errors.New("an archive is not for a terminal"), hint: "boxctl export -o FILE BOX"}
			}
			return a.into(file, func(w io.Writer) error { return a.export(cmd.Context(), c, args[0], o, w) })
		}),
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`FILE` to write to, instead of standard output")
	cmd.Flags().BoolVar(&o.LeaveOut, "leave-out", false, "leave out files that cannot be read")
	cmd.Flags().BoolVar(&o.WithWorkspace, "with-workspace", false, "export the named workspace, as the new box's own")
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
func (a *app) export(ctx context.Context, c *client.Client, id string, o client.ExportOptions, w io.Writer) error {
	p := a.progress("written", 0)
	defer p.end()
	o.Told = func(what string) error {
		a.printMessage("boxctl", "left out: "+render.Printable(what))
		return nil
	}
	err := c.Export(ctx, id, io.MultiWriter(w, p), o)
	if errors.Is(err, client.ErrUnreadable) {
		err = fmt.Errorf("%w; --leave-out exports the rest", err)
	}
	return err
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

// imports makes the box of an archive, or nothing.
func (a *app) imports(ctx context.Context, c *client.Client, id string, r io.Reader) (api.Session, error) {
	s, err := c.Import(ctx, r, client.ImportOptions{ID: id})
	switch {
	case errors.Is(err, client.ErrNoExport):
		err = &usageError{err: err, hint: "boxctl export -o FILE BOX makes one; boxctl images import FILE takes an image"}
	case errors.Is(err, client.ErrExists):
		err = fmt.Errorf("%w; name the new one with --id", err)
	case err == nil:
		a.showLess(&s)
	}
	return s, err
}

// showLess says what a new box has less of than the one it was made from.
func (a *app) showLess(s *api.Session) {
	a.showClamped(s.Clamped)
	for _, k := range s.Skills {
		if k.Missing {
			a.printMessage("boxctl", "the skill "+render.Printable(k.Name)+" does not exist here")
		}
	}
}
