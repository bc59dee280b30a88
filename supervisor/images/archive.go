// SPDX-License-Identifier: Apache-2.0

// Images arrive as an OCI image layout, as the output of "docker save", or as a plain tar archive of a root directory. Every
// digest in the archive is verified; layers are unpacked in a box and not examined here.

package images

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/fault"
)

// Forms of an archive.
const (
	auto   = "auto"
	OCI    = "oci"
	Docker = "docker"
	Rootfs = "rootfs"
	// commit is an image made from a session: its root, and a configuration that boxd makes.
	commit = "commit"
)

// archiveLimits bound an archive.
type archiveLimits struct {
	Bytes   int64 // of all layers together, unpacked as tar archives
	Entries int   // of the archive itself
}

// ArchiveImage is one image of an archive. Its layers are read from the archive, which must stay open.
type ArchiveImage struct {
	Form   string
	Digest string   // "sha256:…": of the manifest, or of its substitute
	Names  []string // from the archive
	Config ImageConfig
	Layers []Layer
}

// ImageConfig is what an image says about programs that run in it.
type ImageConfig struct {
	Architecture string
	Env          []string
	WorkingDir   string
	User         string
	Entrypoint   []string
	Cmd          []string
}

// Layer is a part of an image.
type Layer struct {
	Digest string // of the bytes in the archive; "": not stated
	DiffID string // of the uncompressed tar archive; "": not stated
	from   io.ReaderAt
	at     int64
	size   int64
}

// Bounds of everything but layers.
const (
	maxDocument = 4 << 20
	maxLayers   = 512
	maxIndexed  = 4096
	maxNesting  = 4
	maxReads    = 256      // of documents: indexes may refer to each other repeatedly
	maxRead     = 32 << 20 // bytes of them
)

// file is the place of a file in an archive.
type file struct {
	at, size int64
	link     string // name of the file it links to
}

// opened is an archive being read.
type opened struct {
	from  *os.File
	files map[string]file
	read  int   // documents
	bytes int64 // of those
}

func bad(format string, args ...any) *fault.Error {
	f := fault.Errorf(fault.Invalid, "image archive: "+format, args...)
	f.Field, f.Allowed = "body", "an OCI image layout, what docker save has written, or a tar archive of a root directory, whole and undamaged"
	return f
}

// openArchive finds the archive's image for an architecture with the given name; "" will do if there is only one. plain is an
// empty file for the decompressed archive.
func openArchive(ctx context.Context, from, plain *os.File, form, name, arch string, l archiveLimits) (*ArchiveImage, error) {
	if err := inflateInto(ctx, from, plain, l.Bytes); err != nil {
		return nil, err
	}
	if n, err := plain.Seek(0, io.SeekEnd); err == nil && n > 0 {
		from = plain
	}
	o := &opened{from: from, files: map[string]file{}}
	if err := o.index(ctx, l.Entries); err != nil {
		return nil, err
	}
	_, layout := o.files["oci-layout"]
	_, index := o.files["index.json"]
	_, saved := o.files["manifest.json"]
	switch {
	case form == OCI || form == auto && layout && index:
		return o.oci(ctx, name, arch)
	case form == Docker || form == auto && saved:
		return o.docker(name, arch)
	}
	return o.rootfs(ctx)
}

// inflateInto decompresses an archive that is compressed as a whole.
func inflateInto(ctx context.Context, from, plain *os.File, limit int64) error {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r, compressed, err := decompress(from)
	if err != nil || !compressed {
		return err
	}
	defer r.Close()
	return copyBounded(ctx, plain, r, limit)
}

// index finds the files that describe the others.
func (o *opened) index(ctx context.Context, limit int) error {
	if _, err := o.from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r := tar.NewReader(o.from)
	for n := 0; ; n++ {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return nil
		case errors.Is(err, io.EOF):
			return bad("it is empty")
		case errors.Is(err, io.ErrUnexpectedEOF):
			return bad("it is truncated")
		case errors.Is(err, tar.ErrInsecurePath): // not a file we look for
		case err != nil:
			return bad("not a tar archive, or damaged: %v", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if n >= limit {
			return bad("it has more than %d entries (images.max_entries)", limit)
		}
		name := path.Clean(h.Name)
		if !known(name) {
			continue
		}
		if _, dup := o.files[name]; dup {
			return bad("it has %s twice", fault.Show(name))
		}
		if len(o.files) >= maxIndexed {
			return bad("it has more than %d blobs", maxIndexed)
		}
		f := file{size: h.Size}
		switch h.Typeflag {
		case tar.TypeReg:
			if f.at, err = o.from.Seek(0, io.SeekCurrent); err != nil {
				return err
			}
			for key := range h.PAXRecords {
				if strings.HasPrefix(key, "GNU.sparse.") {
					return bad("%s is sparse", fault.Show(name))
				}
			}
		case tar.TypeSymlink: // from older versions of docker save
			f.link = path.Join(path.Dir(name), h.Linkname)
		default:
			continue
		}
		o.files[name] = f
	}
}

// known reports whether a file of this name can belong to one of the forms.
func known(name string) bool {
	switch name {
	case "oci-layout", "index.json", "manifest.json":
		return true
	}
	if rest, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
		return isHex(rest)
	}
	dir, base := path.Split(name)
	switch {
	case dir == "":
		stem, ext, _ := strings.Cut(base, ".")
		return isHex(stem) && (ext == "json" || ext == "tar")
	case base == "layer.tar":
		return isHex(strings.TrimSuffix(dir, "/"))
	}
	return false
}

func isHex(s string) bool {
	return len(s) == sha256.Size*2 && strings.Trim(s, "0123456789abcdef") == ""
}

// find returns a file of the archive.
func (o *opened) find(name string) (file, error) {
	f, ok := o.files[path.Clean(name)]
	if ok && f.link != "" {
		f, ok = o.files[f.link]
		ok = ok && f.link == ""
	}
	if !ok {
		return f, bad("%s is not in it", fault.Show(name))
	}
	return f, nil
}

// document decodes a JSON file into v. want is its expected digest, "" for none.
func (o *opened) document(name, want string, v any) error {
	f, err := o.find(name)
	if err != nil {
		return err
	}
	if f.size > maxDocument {
		return bad("%s has %d bytes, more than %d", fault.Show(name), f.size, maxDocument)
	}
	o.read++
	o.bytes += f.size
	if o.read > maxReads || o.bytes > maxRead {
		return bad("its indexes refer to more than %d documents, or %d bytes of them", maxReads, maxRead)
	}
	data := make([]byte, f.size)
	if _, err := io.ReadFull(io.NewSectionReader(o.from, f.at, f.size), data); err != nil {
		return bad("it is truncated in %s", fault.Show(name))
	}
	sum := sha256.Sum256(data)
	if digest := "sha256:" + hex.EncodeToString(sum[:]); want != "" && digest != want {
		return bad("%s has the digest %s", fault.Show(want), digest)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return bad("%s is not the expected JSON: %v", fault.Show(name), err)
	}
	return nil
}

// wanted is a reader that stops when its caller has given up.
type wanted struct {
	io.Reader
	check func() error
}

func (w wanted) Read(p []byte) (int, error) {
	if err := w.check(); err != nil {
		return 0, err
	}
	return w.Reader.Read(p)
}

// copyBounded copies at most this many bytes, and refuses more.
func copyBounded(ctx context.Context, w io.Writer, r io.Reader, limit int64) error {
	n, err := io.Copy(w, io.LimitReader(wanted{r, ctx.Err}, limit+1))
	switch {
	case err != nil:
		return err
	case n > limit:
		return bad("it unpacks to more than %d bytes (images.max_bytes)", limit)
	}
	return nil
}

// Bounds of decompression.
const (
	freeBytes = 64 << 20  // that may be all zeros, see archive.Inflated
	maxWindow = 128 << 20 // of zstd, in memory
)

// decompress reads data that may be compressed with gzip or zstd; compressed says whether it is. Errors of the reader name what
// is wrong.
func decompress(r io.Reader) (plain io.ReadCloser, compressed bool, err error) {
	in := &archive.Counter{R: r}
	b := bufio.NewReaderSize(in, 256<<10)
	head, _ := b.Peek(4)
	switch {
	case len(head) > 1 && head[0] == 0x1f && head[1] == 0x8b:
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, true, bad("not gzip data, or damaged")
		}
		return &inflated{&archive.Inflated{Z: z, In: in, Free: freeBytes}, func() {}}, true, nil
	case len(head) > 3 && head[0] == 0x28 && head[1] == 0xb5 && head[2] == 0x2f && head[3] == 0xfd:
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, true, bad("not zstd data, or damaged")
		}
		return &inflated{&archive.Inflated{Z: z, In: in, Free: freeBytes}, z.Close}, true, nil
	}
	return io.NopCloser(b), false, nil
}

// inflated reads compressed data, with errors that say what is wrong with it.
type inflated struct {
	from  *archive.Inflated
	close func()
}

func (i *inflated) Close() error {
	i.close()
	return nil
}

func (i *inflated) Read(p []byte) (int, error) {
	n, err := i.from.Read(p)
	if too, ok := errors.AsType[*archive.Refusal](err); ok {
		return 0, bad("%s", too.Reason)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.As(err, new(*os.PathError)) {
		err = bad("a compressed part is damaged or truncated: %v", err)
	}
	return n, err
}

// Write writes a layer as a tar archive of at most this many bytes, and verifies its digests.
func (l *Layer) Write(ctx context.Context, w io.Writer, limit int64) error {
	packed, plain := sha256.New(), sha256.New()
	section := io.TeeReader(io.NewSectionReader(l.from, l.at, l.size), packed)
	r, _, err := decompress(section)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := copyBounded(ctx, io.MultiWriter(w, plain), r, limit); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, wanted{section, ctx.Err}); err != nil { // bytes after the compressed data
		return err
	}
	for _, d := range []struct {
		what, want string
		sum        []byte
	}{{"layer", l.Digest, packed.Sum(nil)}, {"content of layer", l.DiffID, plain.Sum(nil)}} {
		if got := "sha256:" + hex.EncodeToString(d.sum); d.want != "" && got != d.want {
			return bad("the %s %s has the digest %s", d.what, fault.Show(d.want), got)
		}
	}
	return nil
}

// digestName returns the name of a blob by its digest.
func digestName(digest string) (string, error) {
	sum, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || !isHex(sum) {
		return "", bad("the digest %s is not a sha256 digest", fault.Show(digest))
	}
	return "blobs/sha256/" + sum, nil
}

// rootfs treats the whole archive as one layer.
func (o *opened) rootfs(ctx context.Context) (*ArchiveImage, error) {
	size, err := o.from.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, wanted{io.NewSectionReader(o.from, 0, size), ctx.Err}); err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	digest := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return &ArchiveImage{Form: Rootfs, Digest: digest, Layers: []Layer{{DiffID: digest, from: o.from, size: size}}}, nil
}
