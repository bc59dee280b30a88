// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Bounds of S3, of objects that come in parts.
const (
	maxParts  = 10_000
	maxPart   = 5 << 30
	maxObject = 5 << 40
	// defaultPart is how large a part is unless an option says otherwise: what is sent again after a failure of the network.
	defaultPart = 64 << 20
	// abortTimeout is for giving up what has come of a file: who does not, pays for it.
	abortTimeout = 30 * time.Second
)

// partsOf is how large the parts of a file are.
func (b *Bucket) partsOf(size int64) int64 { return max(b.part, (size+maxParts-1)/maxParts) }

// putParts sends a file in parts, one after the other. Nobody sees it before all have arrived, and what has come of one
// that fails is given up.
func (b *Bucket) putParts(ctx context.Context, f *File, key string, metadata map[string]string, sent func(n int64)) error {
	created, err := b.s3.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &b.name, Key: &key, Metadata: metadata})
	if err != nil {
		return err
	}
	list, err := b.sendParts(ctx, f, key, created.UploadId, sent)
	if err == nil {
		_, err = b.s3.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket: &b.name, Key: &key, UploadId: created.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: list},
		})
		if err != nil { // an answer that was lost: the next attempt finds no upload any more
			if state, lost := b.has(ctx, f); lost == nil && state == same {
				return nil
			}
		}
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		_, _ = b.s3.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.name, Key: &key, UploadId: created.UploadId}) // the failure is told
	}
	return err
}

func (b *Bucket) sendParts(ctx context.Context, f *File, key string, upload *string, sent func(n int64)) ([]types.CompletedPart, error) {
	var list []types.CompletedPart
	size := b.partsOf(f.Size)
	for at, number := int64(0), int32(1); at < f.Size; at, number = at+size, number+1 {
		n := min(size, f.Size-at)
		// As a whole file, a part is signed with its digest.
		out, err := b.s3.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &b.name, Key: &key, UploadId: upload, PartNumber: &number, Body: io.NewSectionReader(f.Content, at, n), ContentLength: &n,
		})
		if err != nil {
			return nil, err
		}
		list = append(list, types.CompletedPart{ETag: out.ETag, PartNumber: &number})
		sent(n)
	}
	return list, nil
}
