package wire

//go:generate protoc -I ../.. --go_out=../.. --go_opt=paths=source_relative --connect-go_out=../.. --connect-go_opt=paths=source_relative,simple=true runner/wire/runner.proto

// Protocol is the version this build speaks. A Hub works with Runners of its own and the previous version; an older
// one is told to update in Hello's answer. It rises with each change that an older side would misread.
//
// Version 2 has Values: a Runner before it gets no Environment with Variables. Version 3 has CloneToken: a Runner before
// it gets nothing of a Repo that is cloned with a token. Version 4 has SessionToken: under a Runner before it, git in a
// Sandbox asks the person alone.
const Protocol = 4
