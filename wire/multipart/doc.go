// Package multipart finds the parts of a form that lies whole in memory, by
// their offsets, so that one value can be changed without writing the form anew.
// It must not know what the parts mean. It takes only forms that every reader
// takes apart alike: mime/multipart is more lenient, and tells no offsets.
package multipart
