// SPDX-License-Identifier: Apache-2.0

package supervisor

import "slices"

// Left is what an earlier boxd has left.
type Left struct {
	Living   []string           // boxes, for who knows them
	Sessions map[string]string  // those with a record, by the keys of their boxes
	Records  map[string]*Record // by the keys of sessions; none of one that cannot be read
}

// All reads all records. The one that cannot be read now, but maybe later, is an error: which box it is of is not known.
func (d *Records) All(passing func(error) bool) (*Left, error) {
	l := &Left{Sessions: map[string]string{}, Records: map[string]*Record{}}
	keys, err := d.Keys()
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		r, err := d.Read(key)
		switch {
		case err == nil:
			l.Sessions[r.BoxKey()], l.Records[key] = key, r
		case passing(err):
			return nil, err
		default:
			l.Sessions[key] = key // who reads it again is told what is wrong with it
		}
	}
	return l, nil
}

// Of is the record of the session that a box is of, if there is one that can be read.
func (l *Left) Of(box string) *Record { return l.Records[l.Sessions[box]] }

// Lives reports whether the session of a box is to be taken over.
func (l *Left) Lives(box string) bool {
	r := l.Of(box)
	return l.Sessions[box] != "" && !l.Stopped(box) && slices.Contains(l.Living, box) && (r == nil || !r.Over())
}

// Stopped reports whether the session of a box is stopped, and its files are to be kept.
func (l *Left) Stopped(box string) bool {
	r := l.Of(box)
	return r != nil && r.Stopped != nil && !r.Over()
}

// Over reports whether a session has ended with the boxd that has written its record.
func (r *Record) Over() bool { return r.OneShot || r.Ending } // who waited for a one-shot one is gone
