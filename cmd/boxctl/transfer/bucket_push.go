// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"golang.org/x/sync/errgroup"
)

// File is what is to be in a bucket.
type File struct {
	Path    string // from the top of the directory; with / at its end it is an empty directory
	Size    int64  // in bytes
	SHA256  string // in hexadecimal digits
	Program bool   // it is executable
	Content io.ReaderAt
}

// What an object says of itself beside its content, so that a push can go on where an earlier one ended, and what comes
// back is what was sent.
const (
	digestKey  = "boxd-sha256"
	programKey = "boxd-program"
)

// Pushed is what a push has come to.
type Pushed struct {
	Sent  int   `json:"sent"`  // files
	There int   `json:"there"` // files that were there already
	Bytes int64 `json:"bytes"` // sent
}

// Push puts files there that are not. It is done when each is there with its digest, as the server tells; after a failure
// the same call goes on with what is missing. Objects of the names with other content are replaced only if asked for,
// and otherwise refused before anything is sent.
func (b *Bucket) Push(ctx context.Context, files []File, overwrite bool, progress func(n int64)) (done Pushed, err error) {
	for i := range files {
		f := &files[i]
		if err := validObjectName(strings.TrimSuffix(f.Path, "/")); err != nil {
			return done, fmt.Errorf("%.200q cannot be the name of an object: %w", f.Path, err)
		}
		if len(b.prefix)+len(f.Path) > maxKey || f.Size > maxObject {
			return done, fmt.Errorf("%.200q: S3 takes names of %d bytes and files of %d bytes", f.Path, maxKey, int64(maxObject))
		}
	}
	if err := b.exists(ctx); err != nil {
		return done, err
	}
	states, err := b.present(ctx, files)
	if err != nil {
		return done, err
	}
	var missing []*File
	var other []string
	for i := range files {
		switch states[i] {
		case nothing:
			missing = append(missing, &files[i])
		case different:
			missing = append(missing, &files[i])
			other = append(other, files[i].Path)
		default:
			done.There++
			progress(files[i].Size)
		}
	}
	if len(other) > 0 && !overwrite {
		return done, fmt.Errorf("%v has %d of these names with other content, such as %.200q: --overwrite replaces them", b, len(other), slices.Min(other))
	}
	return b.send(ctx, missing, done, progress)
}

// send sends files. After a failure none is begun, and those that are on their way go on: they need not be sent again.
func (b *Bucket) send(ctx context.Context, missing []*File, done Pushed, progress func(n int64)) (Pushed, error) {
	var mu sync.Mutex // guards done and failed, and the calls of progress
	failed := false
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, f := range missing {
		group.Go(func() error {
			mu.Lock()
			aborted := failed
			mu.Unlock()
			if aborted {
				return nil
			}
			err := b.put(ctx, f, func(n int64) {
				mu.Lock()
				defer mu.Unlock()
				progress(n)
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = true
				return err
			}
			done.Sent++
			done.Bytes += f.Size
			return nil
		})
	}
	err := group.Wait()
	return done, err
}

// exists looks for the bucket: that there is no file of a name says nothing of it, and a server may break off what is sent.
func (b *Bucket) exists(ctx context.Context) error {
	_, err := b.s3.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &b.name})
	if answer, ok := errors.AsType[smithy.APIError](err); ok && (answer.ErrorCode() == "NotFound" || answer.ErrorCode() == "NoSuchBucket") {
		return b.refused("", errors.New("there is no such bucket"))
	}
	return b.refused("", err)
}

// presence is what there is of a file.
type presence int

const (
	nothing presence = iota
	different
	same
)

// present asks for each file whether it is there.
func (b *Bucket) present(ctx context.Context, files []File) ([]presence, error) {
	states := make([]presence, len(files))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range files {
		group.Go(func() (err error) {
			states[i], err = b.has(ctx, &files[i])
			return err
		})
	}
	return states, group.Wait()
}

func (b *Bucket) has(ctx context.Context, f *File) (presence, error) {
	key := b.prefix + f.Path
	out, err := b.s3.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	if answer, ok := errors.AsType[smithy.APIError](err); ok && (answer.ErrorCode() == "NotFound" || answer.ErrorCode() == "NoSuchKey") {
		return nothing, nil
	}
	if err != nil {
		return nothing, b.refused(f.Path, err)
	}
	if out.ContentLength == nil || *out.ContentLength != f.Size || out.Metadata[digestKey] != f.SHA256 || (out.Metadata[programKey] == "true") != f.Program {
		return different, nil
	}
	return same, nil
}

// put sends a file, in parts if it is large, and asks whether it has arrived.
func (b *Bucket) put(ctx context.Context, f *File, sent func(n int64)) (err error) {
	key := b.prefix + f.Path
	metadata := map[string]string{digestKey: f.SHA256}
	if f.Program {
		metadata[programKey] = "true"
	}
	if f.Size > b.part {
		err = b.putParts(ctx, f, key, metadata, sent)
	} else {
		// The request is signed with the digest of the body, which the server computes too.
		_, err = b.s3.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &b.name, Key: &key, Body: io.NewSectionReader(f.Content, 0, f.Size), ContentLength: &f.Size, Metadata: metadata,
		})
		sent(f.Size)
	}
	if err != nil {
		return b.refused(f.Path, err)
	}
	state, err := b.has(ctx, f)
	if err == nil && state != same {
		err = b.refused(f.Path, errors.New("the server accepted it, but does not return the same object"))
	}
	return err
}
