// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/quantity"

	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Source describes an archive.
type Source struct {
	Name string // of the image; "": from the archive
	Form string // one of the forms; "": detected
	By   string // who imports it
}

// Import makes an image of an archive: all of it or nothing. It replaces an image of the same name. It waits while another import
// runs, and for a minute at most while too many archives are being received: the error is of kind fault.Exhausted then.
func (s *Store) Import(ctx context.Context, r io.Reader, from Source) (Image, error) {
	forms := []string{auto, OCI, Docker, Rootfs}
	if from.Form == "" {
		from.Form = auto
	}
	if !slices.Contains(forms, from.Form) {
		return Image{}, fault.Field("form", from.Form, fault.OneOf(forms...))
	}
	if from.Name != "" {
		if err := validName(from.Name); err != nil {
			return Image{}, err
		}
	}
	return s.take(ctx, &incoming{
		name: from.Name, by: from.By,
		fill: func(f *os.File) error { return receive(f, r, int64(s.cfg.MaxArchive)) },
		open: func(ctx context.Context, packed, plain *os.File) (*ArchiveImage, error) {
			limits := archiveLimits{Bytes: s.plain(int64(s.cfg.MaxBytes)), Entries: s.cfg.MaxEntries}
			return openArchive(ctx, packed, plain, from.Form, from.Name, runtime.GOARCH, limits)
		},
	})
}

// incoming is an image on its way in.
type incoming struct {
	name string                 // "": what open finds
	by   string                 // who sends it
	fill func(f *os.File) error // writes the archive, while the caller sends it
	open func(ctx context.Context, packed, plain *os.File) (*ArchiveImage, error)
}

// take makes an image of what comes in: all of it or nothing.
func (s *Store) take(ctx context.Context, in *incoming) (Image, error) {
	release, err := s.receiving.Enter(ctx, in.by)
	if err != nil {
		return Image{}, err
	}
	defer release()
	dir, err := durable.NewScratch(s.root)
	if err != nil {
		return Image{}, fmt.Errorf("import an image: %w", err)
	}
	defer func() {
		if err := s.root.RemoveAll(dir); err != nil {
			s.in.Log.Warn("cannot clean up after an import", "error", err)
		}
	}()
	return s.importFrom(ctx, dir, in)
}

// maxReceiving is how many archives may be on disk at a time, complete or not.
const maxReceiving = 4

// receivingTimeout is how long an archive waits until it may come.
const receivingTimeout = time.Minute

// waitFor waits for a free slot. done releases it.
func waitFor(ctx context.Context, sem chan struct{}) (done func(), err error) {
	select {
	case sem <- struct{}{}:
		return func() { <-sem }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// importing holds the tree of the running import; there is one at a time, and no session has such a key.
const importing = "import"

func (s *Store) importFrom(ctx context.Context, dir string, in *incoming) (Image, error) {
	var all [3]*os.File
	for i, name := range []string{"archive", "plain", "layer"} {
		f, err := s.root.OpenFile(path.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return Image{}, fmt.Errorf("import an image: %w", err)
		}
		defer f.Close()
		all[i] = f
	}
	if err := in.fill(all[0]); err != nil {
		return Image{}, err
	}
	done, err := waitFor(ctx, s.busy) // only now: a slow sender delays no other import
	if err != nil {
		return Image{}, err
	}
	defer done()
	found, err := in.open(ctx, all[0], all[1])
	if err != nil {
		return Image{}, err
	}
	name, err := nameOf(in.name, found.Names)
	if err != nil {
		return Image{}, err
	}
	img := &Image{Name: name, Digest: found.Digest, Form: found.Form, Layers: len(found.Layers), Config: found.Config, Created: time.Now()}
	s.mu.Lock()
	old, count, same := s.images[name], len(s.images), s.findLocked(found.Digest)
	if same != nil { // the same content has a tree, held in case its image is removed meanwhile
		s.holdLocked(importing, same.Tree)
		img.Tree, img.Bytes, img.Entries, img.LeftOut = same.Tree, same.Bytes, same.Entries, same.LeftOut
	}
	s.mu.Unlock()
	defer s.Release(importing)
	if old == nil && count >= s.cfg.Max {
		return Image{}, fault.Errorf(fault.Exhausted, "the image store has %d images, its limit (images.max)", count).WithHint("remove unused images: boxctl images prune")
	}
	if same == nil {
		if err := s.unpack(ctx, img, found.Layers, all[2]); err != nil {
			return Image{}, err
		}
	}
	if err := s.enter(img); err != nil {
		if same == nil {
			s.drop(img.Tree)
		}
		return Image{}, err
	}
	return *img, nil
}

// plain is the longest that layer archives with this much content may be, headers included.
func (s *Store) plain(content int64) int64 { return content + int64(s.cfg.MaxEntries)*2048 }

// receive writes an archive to disk.
func receive(f *os.File, r io.Reader, limit int64) error {
	n, err := archive.Receive(f, r, limit)
	switch {
	case err != nil:
		return err
	case n > limit:
		return fault.Field("body", fault.Word("more"), fmt.Sprintf("at most %v (images.max_archive)", quantity.Size(limit)))
	}
	return nil
}

// unpack makes the tree of an image in a box, which is then thrown away.
func (s *Store) unpack(ctx context.Context, img *Image, layers []Layer, scratch *os.File) error {
	spec, err := s.spec(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.key = spec.Key
	s.mu.Unlock()
	box, err := s.in.Boxes.Launch(ctx, spec)
	if err == nil {
		for i := range layers {
			if err = s.layer(ctx, box, img, &layers[i], scratch, i == len(layers)-1); err != nil {
				break
			}
		}
		if err == nil {
			img.Tree = strings.ToLower(rand.Text())
			err = s.in.Boxes.Keep(context.WithoutCancel(ctx), spec.Key, img.Tree)
		}
		timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		ended := s.in.Boxes.End(timeoutCtx, spec.Key, true)
		box.Close()
		if err == nil && ended != nil {
			s.in.Log.Warn("cannot end the box that unpacked an image", "key", spec.Key, "error", ended)
		}
	}
	s.mu.Lock()
	s.key = ""
	s.mu.Unlock()
	if full := policy.WorkspacesFull(err); full != nil {
		return full
	}
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		return fmt.Errorf("unpack image %s: %w", fault.Show(img.Name), step)
	}
	return err
}

// spec is the box in which layers are unpacked: the host's programs, no network, and nothing of the host but an empty workspace.
func (s *Store) spec(ctx context.Context) (*isolation.Spec, error) {
	def := policy.DefaultConfig()
	settings, _, err := def.Merge(&policy.Request{Profile: def.Sessions.DefaultProfile})
	if err != nil {
		return nil, err
	}
	settings.WorkspaceQuota = quantity.Size(s.plain(int64(s.cfg.MaxBytes))) + quantity.Size(s.cfg.MaxEntries)*2048 // and partly filled blocks
	settings.WorkspaceInodes = 2*s.cfg.MaxEntries + 64
	found, err := s.in.Boxes.ProbeHost(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine the host: %w", err)
	}
	by, err := s.in.Policy().Enforcement(&settings, policy.Host{Layout: driver.HostLayout(), Host: *found})
	if err != nil {
		return nil, err
	}
	spec := policy.BoxSpec(&settings, by, "")
	spec.Key, spec.Hostname = strings.ToLower(rand.Text() + rand.Text())[:isolation.KeyLen], "unpack"
	return spec, nil
}

// maxOutput is how much output of the program in the box is read. It is not trusted.
const maxOutput = 1 << 10

// layer unpacks one layer.
func (s *Store) layer(ctx context.Context, box *client.Box, img *Image, l *Layer, scratch *os.File, last bool) error {
	if err := errors.Join(scratch.Truncate(0), rewind(scratch)); err != nil {
		return err
	}
	if err := l.Write(ctx, scratch, s.plain(int64(s.cfg.MaxBytes)-img.Bytes)); err != nil {
		return err
	}
	argv := []string{isolation.FilesProgram, files.LayerCommand, strconv.FormatInt(int64(s.cfg.MaxBytes)-img.Bytes, 10), strconv.Itoa(s.cfg.MaxEntries - img.Entries)}
	if last {
		argv = append(argv, files.LastLayer, img.Config.WorkingDir)
	}
	// Another open file description, which is read-only.
	in, err := os.Open("/proc/self/fd/" + strconv.FormatUint(uint64(scratch.Fd()), 10))
	if err != nil {
		return err
	}
	defer in.Close()
	p, err := box.Start(&isolation.Command{
		Argv: argv, Env: []string{"GOMAXPROCS=2"}, Dir: isolation.Workspace, ScriptArg: -1, Stdin: isolation.StdinFile,
		Timeout: time.Duration(s.cfg.Timeout), Output: isolation.Output{Head: maxOutput},
	}, client.Files{Stdin: in})
	if err != nil {
		return err
	}
	defer p.Close()
	exit, err := p.Wait(ctx)
	if err != nil {
		return err // the box ends with the context
	}
	return s.count(p, exit, img)
}

func rewind(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// count adds the counts that the program reports, within bounds.
func (s *Store) count(p *client.Program, exit *isolation.Exit, img *Image) error {
	output, _, err := p.Retained(0)
	if err != nil {
		return err
	}
	problem, _, err := p.Retained(1)
	if err != nil {
		return err
	}
	switch {
	case exit.Reason == isolation.ReasonTimedOut:
		return fault.Errorf(fault.Exhausted, "unpacking a layer took longer than %v (images.timeout)", s.cfg.Timeout).WithHint("raise images.timeout in box.toml, or use smaller layers")
	case exit.Reason == isolation.ReasonOOM:
		return fault.Errorf(fault.Invalid, "image archive: unpacking a layer needs more memory than it may have").WithHint("use an image with fewer or shorter file names")
	case exit.Reason != isolation.ReasonExited || exit.Code != 0:
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return -1
			}
			return r
		}, strings.ToValidUTF8(string(bytes.TrimSpace(problem)), "?"))
		f := fault.Errorf(fault.Invalid, "image archive: layer: %s", text)
		f.Field, f.Allowed = "body", "layers whose entries stay in the image, within images.max_bytes and images.max_entries"
		return f
	}
	var got [3]int64
	if n, err := fmt.Sscanf(string(output), "%d %d %d\n", &got[0], &got[1], &got[2]); n != 3 || err != nil || slices.Min(got[:]) < 0 || got[0] > int64(s.cfg.MaxBytes) || slices.Max(got[1:]) > int64(2*s.cfg.MaxEntries) {
		return errors.New("unpack an image: the unpacker gave an invalid answer")
	}
	img.Bytes += got[0]
	img.Entries += int(got[1])
	img.LeftOut += int(got[2])
	if img.Entries > s.cfg.MaxEntries || img.Bytes > int64(s.cfg.MaxBytes) {
		return fault.Errorf(fault.Invalid, "image archive: it has %d bytes in %d files; the limits are %v (images.max_bytes) and %d (images.max_entries)", img.Bytes, img.Entries, s.cfg.MaxBytes, s.cfg.MaxEntries).WithHint("use a smaller image")
	}
	return nil
}
