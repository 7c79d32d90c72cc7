//! One Parquet file: written once, read group by group.
//!
//! Groups are small enough to be held in memory, so files of any size can be rewritten. Values are compressed with
//! Snappy, which every reader has and which needs no C.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::reader::get_typed_column_reader;
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::{FileReader as _, RowGroupReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type as ParquetType;

use super::schema::{Cell, Column, Row, Schema, Type};
use crate::files::{FileError, private_file};

/// Rows of a group: what readers work on in parallel, and what is held in memory.
const GROUP_ROWS: usize = 64 * 1024;

const ADVICE: &str = "restore it, or rebuild the pipeline that writes it";

/// What went wrong while the file was read: it is not what was written.
fn damaged(path: &Path) -> impl Fn(ParquetError) -> FileError {
    let path = path.to_owned();
    move |error| FileError::Damaged { path: path.clone(), reason: error.to_string(), advice: ADVICE }
}

/// What went wrong while it was written: the disk, most likely.
fn unwritten(path: &Path) -> impl Fn(ParquetError) -> FileError {
    let path = path.to_owned();
    move |error| FileError::doing("write", &path)(std::io::Error::other(error))
}

/// A file that is being written.
pub(super) struct Writer {
    path: PathBuf,
    schema: Arc<Schema>,
    out: SerializedFileWriter<File>,
    group: Vec<Row>,
    rows: u64,
}

impl Writer {
    pub(super) fn create(path: &Path, schema: &Arc<Schema>) -> Result<Self, FileError> {
        let created = private_file().write(true).create_new(true).open(path);
        let file = created.map_err(FileError::doing("create", path))?;
        let message = parse_message_type(&schema.message()).map_err(unwritten(path))?;
        let out =
            SerializedFileWriter::new(file, Arc::new(message), properties()).map_err(unwritten(path))?;
        let (path, schema) = (path.to_owned(), Arc::clone(schema));
        Ok(Self { path, schema, out, group: Vec::new(), rows: 0 })
    }

    pub(super) fn push(&mut self, row: Row) -> Result<(), FileError> {
        self.group.push(row);
        self.rows += 1;
        if self.group.len() == GROUP_ROWS { self.write_group() } else { Ok(()) }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    fn write_group(&mut self) -> Result<(), FileError> {
        let rows = std::mem::take(&mut self.group);
        let mut group = self.out.next_row_group().map_err(unwritten(&self.path))?;
        write_columns(&mut group, &self.schema, &rows).map_err(unwritten(&self.path))?;
        group.close().map_err(unwritten(&self.path))?;
        Ok(())
    }

    /// Returns once it is on disk; its folder is the caller's business.
    pub(super) fn finish(mut self) -> Result<(), FileError> {
        if !self.group.is_empty() {
            self.write_group()?;
        }
        let file = self.out.into_inner().map_err(unwritten(&self.path))?;
        file.sync_all().map_err(FileError::doing("sync", &self.path))
    }
}

fn properties() -> WriterPropertiesPtr {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("courant version ", env!("CARGO_PKG_VERSION")).to_owned());
    Arc::new(properties.build())
}

fn write_columns(
    group: &mut SerializedRowGroupWriter<'_, File>,
    schema: &Schema,
    rows: &[Row],
) -> Result<(), ParquetError> {
    for (index, column) in schema.columns().iter().enumerate() {
        let Some(mut writer) = group.next_column()? else { break };
        let cells = rows.iter().map(|row| row[index].as_ref());
        match column.kind {
            Type::String => {
                write_column(writer.typed::<ByteArrayType>(), column.optional, cells, |cell| match cell {
                    Cell::Text(text) => ByteArray::from(&**text),
                    _ => ByteArray::default(),
                })
            }
            Type::Int64 | Type::Timestamp => {
                write_column(writer.typed::<Int64Type>(), column.optional, cells, |cell| match cell {
                    Cell::Int(number) => *number,
                    _ => 0,
                })
            }
            Type::Double => {
                write_column(writer.typed::<DoubleType>(), column.optional, cells, |cell| match cell {
                    Cell::Double(number) => *number,
                    _ => 0.0,
                })
            }
            Type::Bool => write_column(writer.typed::<BoolType>(), column.optional, cells, |cell| {
                matches!(cell, Cell::Bool(true))
            }),
        }?;
        writer.close()?;
    }
    Ok(())
}

/// Levels say which rows have a value; a column that every row has needs none.
fn write_column<'a, T: DataType>(
    writer: &mut ColumnWriterImpl<'_, T>,
    optional: bool,
    cells: impl Iterator<Item = Option<&'a Cell>>,
    value_of: impl Fn(&Cell) -> T::T,
) -> Result<(), ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    for cell in cells {
        levels.push(i16::from(cell.is_some()));
        values.extend(cell.map(&value_of));
    }
    writer.write_batch(&values, optional.then_some(&levels[..]), None).map(drop)
}

/// A finished file.
pub(super) struct Reader {
    path: PathBuf,
    schema: Arc<Schema>,
    file: SerializedFileReader<File>,
    /// By column of the schema: where it is in the file, and whether rows may lack it there.
    places: Vec<Option<(usize, bool)>>,
}

impl Reader {
    /// Refuses a file whose columns are others than the schema's. One that was added later may be missing.
    pub(super) fn open(path: &Path, schema: &Arc<Schema>) -> Result<Self, FileError> {
        let opened = File::open(path).map_err(FileError::doing("open", path))?;
        let file = SerializedFileReader::new(opened).map_err(damaged(path))?;
        let expected = parse_message_type(&schema.message()).map_err(damaged(path))?;
        let root = file.metadata().file_metadata().schema_descr().root_schema_ptr();
        let places = places(schema, &expected, &root).map_err(|column| FileError::Damaged {
            path: path.to_owned(),
            reason: format!("its column `{column}` is not what the pipeline now says"),
            advice: "rebuild the pipeline, or give the column another name",
        })?;
        Ok(Self { path: path.to_owned(), schema: Arc::clone(schema), file, places })
    }

    pub(super) fn rows(&self) -> u64 {
        u64::try_from(self.file.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// Shows every row, with the values of these columns only.
    pub(super) fn each(
        &self,
        columns: &[usize],
        each: &mut dyn FnMut(Row) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        for index in 0..self.file.num_row_groups() {
            let group = self.file.get_row_group(index).map_err(damaged(&self.path))?;
            for row in self.group(&*group, columns).map_err(damaged(&self.path))? {
                each(row)?;
            }
        }
        Ok(())
    }

    fn group(&self, group: &dyn RowGroupReader, columns: &[usize]) -> Result<Vec<Row>, ParquetError> {
        let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        let mut rows: Vec<Row> = (0..count).map(|_| vec![None; self.schema.columns().len()]).collect();
        for &column in columns {
            let Some((place, optional)) = self.places[column] else { continue };
            let reader = group.get_column_reader(place)?;
            let into = |rows: &mut [Row], row: usize, cell: Cell| rows[row][column] = Some(cell);
            match self.schema.columns()[column].kind {
                Type::String => {
                    let text = |value: ByteArray| {
                        Cell::Text(String::from_utf8_lossy(value.data()).into_owned().into_boxed_str())
                    };
                    let values = read_column::<ByteArrayType>(reader, count, optional)?;
                    for (row, value) in values {
                        into(&mut rows, row, text(value));
                    }
                }
                Type::Int64 | Type::Timestamp => {
                    let values = read_column::<Int64Type>(reader, count, optional)?;
                    for (row, value) in values {
                        into(&mut rows, row, Cell::Int(value));
                    }
                }
                Type::Double => {
                    let values = read_column::<DoubleType>(reader, count, optional)?;
                    for (row, value) in values {
                        into(&mut rows, row, Cell::Double(value));
                    }
                }
                Type::Bool => {
                    let values = read_column::<BoolType>(reader, count, optional)?;
                    for (row, value) in values {
                        into(&mut rows, row, Cell::Bool(value));
                    }
                }
            }
        }
        Ok(rows)
    }
}

/// The values of a column, each with the number of its row.
fn read_column<T: DataType>(
    reader: parquet::column::reader::ColumnReader,
    rows: usize,
    optional: bool,
) -> Result<Vec<(usize, T::T)>, ParquetError> {
    let mut reader = get_typed_column_reader::<T>(reader);
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let (records, ..) =
            reader.read_records(rows - read, optional.then_some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Err(ParquetError::EOF(format!("{read} of {rows} values are there")));
        }
        read += records;
    }
    if !optional {
        return Ok(values.into_iter().enumerate().collect());
    }
    let present = levels.iter().enumerate().filter(|(_, level)| **level > 0).map(|(row, _)| row);
    Ok(present.zip(values).collect())
}

/// Where the schema's columns are in a file, and whether rows may lack them there; the name of the first that does not
/// fit.
fn places(
    schema: &Schema,
    expected: &ParquetType,
    found: &ParquetType,
) -> Result<Vec<Option<(usize, bool)>>, String> {
    let is_same = |one: &ParquetType, two: &ParquetType| {
        one.get_physical_type() == two.get_physical_type()
            && one.get_basic_info().logical_type_ref() == two.get_basic_info().logical_type_ref()
    };
    let place = |(column, wanted): (&Column, &Arc<ParquetType>)| {
        let Some(at) = found.get_fields().iter().position(|field| field.name() == column.name) else {
            return if column.optional { Ok(None) } else { Err(column.name.clone()) };
        };
        let field = &found.get_fields()[at];
        let fits = is_same(wanted, field) && (column.optional || !field.is_optional());
        if fits { Ok(Some((at, field.is_optional()))) } else { Err(column.name.clone()) }
    };
    schema.columns().iter().zip(expected.get_fields()).map(place).collect()
}
