// SPDX-License-Identifier: Apache-2.0

// This file has the commands of boxctl about images: what / of boxes can be made from.

package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/internal/tty"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// imageCommands have what boxctl has.
type imageCommands struct{ *App }

func (s imageCommands) client() *client.Client { return s.Client() }

// imageCommand is that with all others below it.
func imageCommand(app *App) *cobra.Command {
	s := imageCommands{app}
	return Group("images", "Keep images: what / of boxes is made from", `Without an image a box has the host's own programs. An image is another tree of files, such as one that a registry has
or that "docker save" has written; boxd needs no container engine for it. Images are the operator's; everybody may have boxes of them, as far
as the profile lets them (boxctl run --image NAME).`, s.list(), s.inspect(), s.pull(), s.imports(), s.commit(), s.remove(), s.prune())
}

func (s imageCommands) list() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List images, by name", Args: Usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := s.client()
			defer c.Close()
			list, err := c.Images(cmd.Context())
			if err != nil {
				return err
			}
			return s.print(list)
		},
	}
}

func (s imageCommands) print(list []api.Image) error {
	if s.JSON {
		return s.PrintJSON(api.ImageList{Images: list})
	}
	w := tabwriter.NewWriter(s.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tDIGEST\tSIZE\tFILES\tSESSIONS")
	for i := range list {
		img := &list[i]
		fmt.Fprintf(w, "%s\t%s\t%v\t%d\t%d\n", img.Name, short(img.Digest), quantity.Size(img.Bytes), img.Entries, img.Sessions)
	}
	return w.Flush()
}

// short is the beginning of a digest, as people tell them apart.
func short(digest string) string {
	const algorithm, enough = "sha256:", 12
	if sum, ok := strings.CutPrefix(digest, algorithm); ok && len(sum) > enough {
		return sum[:enough]
	}
	return digest
}

func (s imageCommands) inspect() *cobra.Command {
	return &cobra.Command{
		Use: "inspect NAME", Short: "Show everything about an image", Args: Usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			img, err := c.Image(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return s.PrintJSON(img)
		},
	}
}

func (s imageCommands) imports() *cobra.Command {
	var name, form string
	cmd := &cobra.Command{
		Use: "import SOURCE", Short: "Make an image of an archive or a directory", Args: Usage(cobra.ExactArgs(1)),
		Long: `import makes an image of SOURCE: an OCI image layout, as a directory or a tar archive; what "docker save" or "podman
save" has written; or a tar archive of a root directory. Archives may be compressed by gzip or zstd; - is standard
input. Every digest is verified, and layers are unpacked in a box of their own. An image of the same name gives way;
boxes that have it keep it.`,
		Example: `  docker save python:3.12 | boxctl images import -
  boxctl images import ./layout --name tools:1
  boxctl images import rootfs.tar.gz --name debian:mine`,
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, done, err := s.source(args[0])
			if err != nil {
				return err
			}
			defer done()
			c := s.client()
			defer c.Close()
			shown := &progress{r: archive, w: s.Stderr, on: tty.Is(s.Stderr)}
			img, err := c.ImportImage(cmd.Context(), struct{ io.Reader }{shown}, name, form)
			shown.end()
			if err != nil {
				return err
			}
			return s.made(&img)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what it is called; without, what the archive says (`NAME`)")
	cmd.Flags().StringVar(&form, "form", "", "what SOURCE is: oci, docker or rootfs (`FORM`); without, what it looks like")
	return cmd
}

// source opens what is imported. done ends what it has begun.
func (s imageCommands) source(path string) (r io.Reader, done func(), err error) {
	if path == "-" {
		return s.Stdin, func() {}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}
		return f, func() { f.Close() }, nil
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, nil, err
	}
	from, to := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		_, err := archive.PackDir(to, dir, "", archive.Bounds{Bytes: math.MaxInt64, Entries: math.MaxInt, File: math.MaxInt64}, false)
		to.CloseWithError(err)
	}()
	return from, func() {
		from.CloseWithError(errImageUnread)
		<-packed
		dir.Close()
	}, nil
}

var errImageUnread = errors.New("boxd does not read on")

// progress shows how much has been sent, where somebody looks.
type progress struct {
	r     io.Reader
	w     io.Writer
	on    bool
	of    int64      // what it comes to; 0: nobody knows
	mu    sync.Mutex // guards the fields below: what sends may read on after the answer has come
	sent  int64
	shown int64
	over  bool
}

const imageProgressStep = 8 << 20

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent += int64(n)
	if p.on && !p.over && p.sent-p.shown >= imageProgressStep {
		p.shown = p.sent
		fmt.Fprintf(p.w, "\rsent %v", quantity.Size(p.sent-p.sent%imageProgressStep))
		if p.of > 0 {
			fmt.Fprintf(p.w, " of %v", quantity.Size(max(p.of-p.of%imageProgressStep, p.sent-p.sent%imageProgressStep)))
		}
	}
	return n, err
}

// end takes the line back.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.shown > 0 {
		fmt.Fprintf(p.w, "\r\x1b[K")
	}
}

func (s imageCommands) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Short: "Remove images; boxes that have them keep them", Args: Usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			var errs []error
			for _, name := range args {
				errs = append(errs, c.DeleteImage(cmd.Context(), name))
			}
			return errors.Join(errs...)
		},
	}
}

func (s imageCommands) prune() *cobra.Command {
	return &cobra.Command{
		Use: "prune", Short: "Remove the images that no box has and no profile names", Args: Usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := s.client()
			defer c.Close()
			gone, err := c.PruneImages(cmd.Context())
			if err != nil {
				return err
			}
			return s.print(gone)
		},
	}
}
