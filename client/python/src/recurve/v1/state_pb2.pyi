from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExportStateRequest(_message.Message):
    __slots__ = ["state"]
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class ExportStateResponse(_message.Message):
    __slots__ = ["data"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ForkRequest(_message.Message):
    __slots__ = ["at", "count", "options", "seed", "state"]
    AT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    at: int
    count: int
    options: StateOptions
    seed: int
    state: str
    def __init__(self, state: _Optional[str] = ..., count: _Optional[int] = ..., seed: _Optional[int] = ..., options: _Optional[_Union[StateOptions, _Mapping]] = ..., at: _Optional[int] = ...) -> None: ...

class ForkResponse(_message.Message):
    __slots__ = ["states"]
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[StateInfo]
    def __init__(self, states: _Optional[_Iterable[_Union[StateInfo, _Mapping]]] = ...) -> None: ...

class GetStateRequest(_message.Message):
    __slots__ = ["state"]
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class ImportStateRequest(_message.Message):
    __slots__ = ["data", "options"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    options: StateOptions
    def __init__(self, options: _Optional[_Union[StateOptions, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ListStatesRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListStatesResponse(_message.Message):
    __slots__ = ["bytes", "max_bytes", "states"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    max_bytes: int
    states: _containers.RepeatedCompositeFieldContainer[StateInfo]
    def __init__(self, states: _Optional[_Iterable[_Union[StateInfo, _Mapping]]] = ..., bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class PinStateRequest(_message.Message):
    __slots__ = ["options", "state"]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    options: StateOptions
    state: str
    def __init__(self, state: _Optional[str] = ..., options: _Optional[_Union[StateOptions, _Mapping]] = ...) -> None: ...

class ReleaseStateRequest(_message.Message):
    __slots__ = ["state"]
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class ReleaseStateResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ["at", "options", "request_id"]
    AT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    at: int
    options: StateOptions
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., at: _Optional[int] = ..., options: _Optional[_Union[StateOptions, _Mapping]] = ...) -> None: ...

class StateFingerprint(_message.Message):
    __slots__ = ["arithmetic", "block_bytes", "device", "kv_dtype", "layout", "model", "page_bytes", "page_tokens", "slot_bytes", "state_dtype", "weight_dtype"]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DTYPE_FIELD_NUMBER: _ClassVar[int]
    arithmetic: int
    block_bytes: int
    device: str
    kv_dtype: str
    layout: int
    model: str
    page_bytes: int
    page_tokens: int
    slot_bytes: int
    state_dtype: str
    weight_dtype: str
    def __init__(self, model: _Optional[str] = ..., arithmetic: _Optional[int] = ..., device: _Optional[str] = ..., weight_dtype: _Optional[str] = ..., state_dtype: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., layout: _Optional[int] = ..., page_bytes: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., block_bytes: _Optional[int] = ..., page_tokens: _Optional[int] = ...) -> None: ...

class StateHeader(_message.Message):
    __slots__ = ["computed_tokens", "fingerprint", "last_logits", "name", "num_blocks", "seed", "tenant", "token_ids", "token_kinds"]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAST_LOGITS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_KINDS_FIELD_NUMBER: _ClassVar[int]
    computed_tokens: int
    fingerprint: StateFingerprint
    last_logits: bytes
    name: str
    num_blocks: int
    seed: int
    tenant: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_kinds: bytes
    def __init__(self, fingerprint: _Optional[_Union[StateFingerprint, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_kinds: _Optional[bytes] = ..., computed_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., seed: _Optional[int] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ..., last_logits: _Optional[bytes] = ...) -> None: ...

class StateInfo(_message.Message):
    __slots__ = ["age_seconds", "bytes", "computed_tokens", "id", "name", "parent", "pinned", "seed", "stored", "tokens", "ttl_seconds"]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    age_seconds: float
    bytes: int
    computed_tokens: int
    id: str
    name: str
    parent: str
    pinned: bool
    seed: int
    stored: bool
    tokens: int
    ttl_seconds: float
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., seed: _Optional[int] = ..., pinned: bool = ..., stored: bool = ..., ttl_seconds: _Optional[float] = ..., age_seconds: _Optional[float] = ..., parent: _Optional[str] = ...) -> None: ...

class StateOptions(_message.Message):
    __slots__ = ["name", "pinned", "ttl_seconds"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    pinned: bool
    ttl_seconds: float
    def __init__(self, name: _Optional[str] = ..., ttl_seconds: _Optional[float] = ..., pinned: bool = ...) -> None: ...
