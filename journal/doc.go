// Package journal keeps entries on the local disk until somebody else has taken
// them over.
//
// It must not know what an entry is: whoever uses it says how one becomes bytes.
package journal
