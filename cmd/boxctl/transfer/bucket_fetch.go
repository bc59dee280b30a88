// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// Object is what a bucket has.
type Object struct {
	Name string // from the prefix on; with / at its end it is a directory
	Size int64  // in bytes
	etag string // of the version that was listed
}

// Bounds of what is fetched at once.
const (
	maxObjects = 100_000
	maxPages   = 2 * maxObjects / 1000
)

// List lists what is below the prefix, if all of it can be files of one directory and has at most so many bytes together.
func (b *Bucket) List(ctx context.Context, limit int64) (list []Object, total int64, err error) {
	var token *string
	for range maxPages {
		page, err := b.s3.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &b.prefix, ContinuationToken: token})
		if err != nil {
			return nil, 0, b.refused("", err)
		}
		for i := range page.Contents {
			o := &page.Contents[i]
			if o.Key == nil || o.Size == nil || o.ETag == nil || *o.Size < 0 {
				return nil, 0, b.refused("", errors.New("the list has an object without a name, a size or an etag"))
			}
			if *o.Size > limit-total {
				return nil, 0, b.refused("", fmt.Errorf("there are more than %d bytes", limit))
			}
			total += *o.Size
			list = append(list, Object{Name: *o.Key, Size: *o.Size, etag: *o.ETag})
		}
		if len(list) > maxObjects {
			break
		}
		if page.IsTruncated == nil || !*page.IsTruncated {
			return list, total, b.named(list)
		}
		if token = page.NextContinuationToken; token == nil || *token == "" {
			return nil, 0, b.refused("", errors.New("the list is truncated, without a token to continue"))
		}
	}
	return nil, 0, b.refused("", fmt.Errorf("the list has more than %d objects, or no end", maxObjects))
}

// named makes names of keys, which anybody may have chosen: all that is wrong is said at once.
func (b *Bucket) named(list []Object) error {
	var wrong []string
	seen := map[string]string{} // by their small letters: names, directories with / at their end
	wanted := list[:0]
	for _, o := range list {
		key := o.Name
		name, below := strings.CutPrefix(key, b.prefix)
		if below && name == "" {
			continue // the directory itself
		}
		err := errors.New("is not below the prefix")
		if below {
			err = claimName(seen, name, o.Size)
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%.200q %v", key, err))
			continue
		}
		o.Name = name
		wanted = append(wanted, o)
	}
	const limit = 5
	switch n := len(wrong); {
	case n > limit:
		return b.refused("", fmt.Errorf("%d objects cannot be files: %s, …", n, strings.Join(wrong[:limit], "; ")))
	case n > 0:
		return b.refused("", fmt.Errorf("%d objects cannot be files: %s", n, strings.Join(wrong, "; ")))
	case len(wanted) == 0:
		return b.refused("", errors.New("there is nothing"))
	}
	clear(list[len(wanted):])
	return nil
}

// claimName takes a name with all directories on its way.
func claimName(seen map[string]string, name string, size int64) error {
	bare, dir := strings.CutSuffix(name, "/")
	if err := validObjectName(bare); err != nil {
		return fmt.Errorf("has %w", err)
	}
	if dir && size > 0 {
		return errors.New("is a directory with content")
	}
	for i := 0; i <= len(bare); i++ {
		if i < len(bare) && bare[i] != '/' {
			continue
		}
		is := bare[:i]
		if i < len(bare) || dir {
			is += "/"
		}
		folded := strings.ToLower(bare[:i])
		switch was, found := seen[folded]; {
		case !found:
			seen[folded] = is
		case strings.TrimSuffix(was, "/") != bare[:i]:
			return fmt.Errorf("differs from %.200q in case alone", was)
		case was != is:
			return errors.New("is a file and a directory")
		case !strings.HasSuffix(is, "/"):
			return errors.New("is there twice")
		}
	}
	return nil
}

// Fetch writes objects as a tar archive. It ends with an error if one is not what the list has said, or not whole.
func (b *Bucket) Fetch(ctx context.Context, list []Object, w io.Writer, progress func(n int64)) error {
	out := tar.NewWriter(w)
	for i := range list {
		o := &list[i]
		if strings.HasSuffix(o.Name, "/") {
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: o.Name, Mode: 0o755, Format: tar.FormatPAX}); err != nil {
				return err
			}
			continue
		}
		if err := b.fetch(ctx, o, out, progress); err != nil {
			return b.refused(o.Name, err)
		}
	}
	return out.Close()
}

// pieceSize is how much of an object has to come so that it counts as progress.
const pieceSize = 1 << 20

// objectDownload is an object on its way.
type objectDownload struct {
	o        *Object
	out      *tar.Writer
	digest   string // as the object says
	at       int64
	started  bool  // the archive has its header
	broken   error // of the archive, not of the server
	progress func(n int64)
}

// Write takes what has come.
func (g *objectDownload) Write(p []byte) (int, error) {
	n, err := g.out.Write(p)
	g.at += int64(n)
	g.progress(int64(n))
	g.broken = err
	return n, err
}

// fetch gets one object. Where a body ends too early the rest is asked for, of the same version.
func (b *Bucket) fetch(ctx context.Context, o *Object, out *tar.Writer, progress func(n int64)) error {
	sum := sha256.New()
	g := &objectDownload{o: o, out: out, progress: progress}
	to := io.MultiWriter(g, sum)
	for left := attempts; ; left-- {
		before := g.at
		err := b.piece(ctx, g, to)
		if err == nil {
			break
		}
		if g.at-before >= pieceSize {
			left = attempts
		}
		_, answered := errors.AsType[smithy.APIError](err) // the library has tried that again
		if g.broken != nil || answered || left <= 1 || ctx.Err() != nil || errors.Is(err, errOther) {
			return err
		}
		if err := pauseFor(ctx, b.pause>>left); err != nil {
			return err
		}
	}
	if g.digest != "" && hex.EncodeToString(sum.Sum(nil)) != g.digest {
		return errors.New("its content has changed since it was pushed: the digest differs")
	}
	return nil
}

func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errOther = errors.New("the server does not resume where it stopped")

// piece gets what is missing of an object.
func (b *Bucket) piece(ctx context.Context, g *objectDownload, to io.Writer) error {
	key := b.prefix + g.o.Name
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key, IfMatch: &g.o.etag}
	if g.at > 0 {
		in.Range = new(fmt.Sprintf("bytes=%d-", g.at))
	}
	got, err := b.s3.GetObject(ctx, in)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	left := g.o.Size - g.at
	if got.ContentLength != nil && *got.ContentLength >= 0 && *got.ContentLength != left {
		return fmt.Errorf("%w: %d bytes remain, and it announces %d", errOther, left, *got.ContentLength)
	}
	if g.at > 0 && (got.ContentRange == nil || !strings.HasPrefix(*got.ContentRange, fmt.Sprintf("bytes %d-", g.at))) {
		return errOther
	}
	if !g.started {
		g.started = true
		mode := int64(0o644)
		if got.Metadata[programKey] == "true" {
			mode = 0o755
		}
		g.digest = got.Metadata[digestKey]
		if g.broken = g.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: g.o.Name, Size: g.o.Size, Mode: mode, Format: tar.FormatPAX}); g.broken != nil {
			return g.broken
		}
	}
	n, err := io.Copy(to, io.LimitReader(got.Body, left))
	if err == nil && n < left {
		err = io.ErrUnexpectedEOF
	}
	return err
}
